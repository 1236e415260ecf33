# /// script
# requires-python = ">=3.10"
# dependencies = ["torch", "triton", "numpy", "matplotlib", "pandas", "tqdm"]
# ///
"""Step 4: as step 2, but tiles are computed in group-major order, and the fastest tile is found by timing.

Programs start in the order of their ids, as many at a time as the GPU holds, and those in flight share its L2
cache, so what they read should overlap. A 4 x 4 grid of tiles, row by row and in groups of GROUP_M = 2 rows:

     0  1  2  3          0  2  4  6
     4  5  6  7          1  3  5  7
     8  9 10 11          8 10 12 14
    12 13 14 15          9 11 13 15

Programs 0 to 3 read 1 row of tiles of A and 4 columns of B in row order, but 2 + 2 in groups. On a 9 x 9 grid
the first nine programs read 90 tiles in row order and 54 with GROUP_M = 3.
"""
import argparse
import itertools
import statistics
import threading
import unittest.mock

if __name__ == "__main__":
    import common
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = torch.float16, torch.bfloat16, torch.float32
INTERPRETED = not isinstance(tl.cdiv, triton.JITFunction)
if triton.knobs.runtime.interpret != INTERPRETED:
    raise RuntimeError("TRITON_INTERPRET was changed after Python imported triton: set it before")


@triton.jit
def tile_of(pid, grid_m, grid_n, GROUP_M):
    """(pid_m, pid_n) of tile number pid: down each group of GROUP_M rows of tiles, column by column."""
    group = pid // (GROUP_M * grid_n)
    group_m = min(grid_m - group * GROUP_M, GROUP_M)  # the last group may be lower
    within = pid % (GROUP_M * grid_n)
    return group * GROUP_M + within % group_m, within // group_m


@triton.jit
def load(
    x, row, column, rows, columns, stride_row, stride_column, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    TMA: tl.constexpr, TRANSPOSED: tl.constexpr, WIDE: tl.constexpr,
):
    """The tile of x at (row, column), zeros outside of x."""
    if TMA:
        tile = x.load([column, row]).T if TRANSPOSED else x.load([row, column])
    else:
        offs_r, offs_c = row + tl.arange(0, BLOCK_R)[:, None], column + tl.arange(0, BLOCK_C)[None, :]
        mask = (offs_r < rows) & (offs_c < columns)
        if WIDE:
            offs_r, offs_c = offs_r.to(tl.int64), offs_c.to(tl.int64)
        tile = tl.load(x + offs_r * stride_row + offs_c * stride_column, mask=mask, other=0.0)
    return tile


@triton.jit
def store(c_ptr, acc, m, n, M, N, WIDE: tl.constexpr):
    offs_m, offs_n = m + tl.arange(0, acc.shape[0])[:, None], n + tl.arange(0, acc.shape[1])[None, :]
    mask = (offs_m < M) & (offs_n < N)
    if WIDE:
        offs_m = offs_m.to(tl.int64)
    tl.store(c_ptr + offs_m * N + offs_n, acc.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["M", "M_KEY"])
def matmul_kernel(
    a, b, c_ptr,  # a and b are tensor descriptors where TMA, else pointers
    M, N, K, M_KEY,
    stride_am, stride_ak,
    stride_bk, stride_bn,
    A_T: tl.constexpr, B_T: tl.constexpr, FITS_TMA: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, PIECES: tl.constexpr, BLOCK_N: tl.constexpr, BYTES_K: tl.constexpr,
    GROUP_M: tl.constexpr, TMA: tl.constexpr, PERSISTENT: tl.constexpr,
):
    BLOCK_K: tl.constexpr = BYTES_K * 8 // c_ptr.dtype.element_ty.primitive_bitwidth
    grid_m, grid_n = tl.cdiv(M, BLOCK_M * PIECES), tl.cdiv(N, BLOCK_N)
    # Unless PERSISTENT there is one round: the compiler drops this loop, and more programs fit on an SM.
    rounds = tl.cdiv(grid_m * grid_n - tl.program_id(0), tl.num_programs(0)) if PERSISTENT else 1
    for i in tl.range(0, rounds, flatten=PERSISTENT):
        pid_m, pid_n = tile_of(tl.program_id(0) + i * tl.num_programs(0), grid_m, grid_n, GROUP_M)
        m, n = pid_m * BLOCK_M * PIECES, pid_n * BLOCK_N
        m1, m2 = m + BLOCK_M, m + 2 * BLOCK_M

        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        acc1, acc2 = acc, acc
        for k in range(0, K, BLOCK_K):
            b_tile = load(b, k, n, K, N, stride_bk, stride_bn, BLOCK_K, BLOCK_N, TMA, B_T, WIDE)
            a_tile = load(a, m, k, M, K, stride_am, stride_ak, BLOCK_M, BLOCK_K, TMA, A_T, WIDE)
            acc = tl.dot(a_tile, b_tile, acc=acc, input_precision=PRECISION)
            if PIECES == 3:  # 192 rows are no power of two: three tiles of A to each of B
                a_tile = load(a, m1, k, M, K, stride_am, stride_ak, BLOCK_M, BLOCK_K, TMA, A_T, WIDE)
                acc1 = tl.dot(a_tile, b_tile, acc=acc1, input_precision=PRECISION)
                a_tile = load(a, m2, k, M, K, stride_am, stride_ak, BLOCK_M, BLOCK_K, TMA, A_T, WIDE)
                acc2 = tl.dot(a_tile, b_tile, acc=acc2, input_precision=PRECISION)

        store(c_ptr, acc, m, n, M, N, WIDE)
        if PIECES == 3:
            store(c_ptr, acc1, m1, n, M, N, WIDE)
            store(c_ptr, acc2, m2, n, M, N, WIDE)


@triton.jit
def transpose_kernel(x_desc, y_desc, BLOCK: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    y_desc.store([column, row], x_desc.load([row, column]).T)


FIELDS = "BLOCK_M", "PIECES", "BLOCK_N", "BYTES_K", "GROUP_M", "TMA", "PERSISTENT"
CONFIGS = [triton.Config(dict(zip(FIELDS, row, strict=True)), warps, stages) for *row, stages, warps in [
    (128, 1, 128, 128, 8, False, False, 3, 8),
    (128, 1, 128, 64, 8, False, False, 3, 4),
    (64, 1, 64, 128, 8, False, False, 3, 4),
    (64, 1, 32, 256, 8, False, False, 3, 4),
    (16, 1, 64, 256, 8, False, False, 4, 4),
    (16, 1, 32, 512, 8, True, False, 6, 4),
    (16, 1, 128, 256, 8, True, False, 4, 4),
    (64, 1, 32, 512, 8, True, False, 4, 4),
    (64, 1, 64, 128, 8, True, False, 4, 4),
    (64, 1, 64, 256, 8, True, False, 6, 4),
    (64, 1, 128, 256, 8, True, False, 4, 4),
    (128, 1, 64, 128, 8, True, False, 3, 4),
    (128, 1, 128, 64, 8, True, False, 3, 4),
    (64, 3, 128, 128, 4, True, False, 4, 4),
    (128, 1, 256, 128, 8, True, False, 3, 8),
    (128, 1, 128, 128, 8, True, True, 6, 4),
    (128, 1, 256, 128, 8, True, True, 3, 8),
]]


def is_transposed(x):
    return x.stride(0) == 1 != x.stride(1)


def has_tma(x):
    """Whether x is on a card with a tensor memory accelerator (TMA): Hopper or later."""
    return INTERPRETED or bool(torch.version.cuda) and torch.cuda.get_device_capability(x.device) >= (9, 0)


def fits_tma(x):
    """Whether TMA can read x: adjacent elements in rows, or in columns, at multiples of 16 bytes."""
    x = x.T if is_transposed(x) else x
    dense = x.stride(1) == 1 and x.shape[1] <= x.stride(0)
    return dense and x.stride(0) * x.itemsize % 16 == x.data_ptr() % 16 == 0 and has_tma(x)


def operand(x, rows, columns, meta):
    """What the kernel takes for x: with TMA a descriptor of tiles (rows, columns), else x itself."""
    if not meta["TMA"]:
        return x
    return TensorDescriptor.from_tensor(*(x.T, [columns, rows]) if is_transposed(x) else (x, [rows, columns]))


def operand_like(first):
    """x -> its operand, for all x laid out as the first, without the checks which that one has passed."""
    if isinstance(first, torch.Tensor):
        return lambda x: x
    fields = vars(first) | {"base": None}

    def describe(x):
        descriptor = object.__new__(TensorDescriptor)
        descriptor.__dict__ = fields | {"base": x}
        return descriptor

    return describe


def fitting(configs, _, **args):
    """The configs for this size: by TMA where it fits, by pointers where the host's time would show."""
    M, N, ieee = args["M_KEY"], args["N"], args["a"].dtype == torch.float32 and args["PRECISION"] == "ieee"
    tma = args["FITS_TMA"] and (M + N) * args["K"] >= 2**19
    widest = 64 if ieee else 256  # without tensor cores larger tiles were no faster, and slow to compile
    return [config for config in configs for meta in [config.kwargs]
            if meta["TMA"] in (tma, tma and not ieee) and (meta["BLOCK_M"] == 16) == (M <= 16)
            and meta["BLOCK_M"] * meta["PIECES"] < 2 * max(M, 64) and meta["BLOCK_N"] < 2 * max(N, 64)
            and max(meta["BLOCK_M"], meta["BLOCK_N"]) <= widest]


def gpu_ms(launch, quantiles):
    """Median milliseconds on the GPU with a cold L2 cache; it sleeps until the host has caught up."""
    flush = torch.empty(2**24, dtype=torch.int32, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(9)]
    for start, end in events:
        flush.zero_()
        torch.cuda._sleep(500_000)  # clock cycles
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return [statistics.median(start.elapsed_time(end) for start, end in events)]


configured_kernel = triton.heuristics({  # BYTES_K, not BLOCK_K: tiles of A and B fit, whatever the dtype
    "a": lambda args: operand(args["a"], args["BLOCK_M"], args["BYTES_K"] // args["a"].itemsize, args),
    "b": lambda args: operand(args["b"], args["BYTES_K"] // args["b"].itemsize, args["BLOCK_N"], args),
})(matmul_kernel)
tuned_kernel = triton.autotune(
    CONFIGS, key=["M_KEY", "N", "K", "A_T", "B_T", "FITS_TMA", "PRECISION"],
    prune_configs_by={"early_config_prune": fitting}, do_bench=gpu_ms, cache_results=True)(configured_kernel)
TUNING = threading.Lock()
PLANS = {}
LARGE = 1024  # M, N and K from which copies for TMA are made: at 1023 the host's time ate their gain


def padded(x):
    """A copy of x whose rows start at multiples of 16 bytes."""
    return x.new_empty(x.shape[0], triton.cdiv(x.shape[1], 8) * 8)[:, : x.shape[1]].copy_(x)


def transposed(x):
    """A copy of x whose columns are contiguous and start at multiples of 16 bytes."""
    y = x.new_empty(x.shape[1], triton.cdiv(x.shape[0], 8) * 8)[:, : x.shape[0]]
    with torch.cuda.device_of(x):
        transpose_kernel[triton.cdiv(x.shape[0], 64), triton.cdiv(x.shape[1], 64)](
            TensorDescriptor.from_tensor(x, [64, 64]), TensorDescriptor.from_tensor(y, [64, 64]), 64)
    return y.T


def plan(a, b, precision, config=None):
    """launch(a, b) for all a, b of these shapes, strides, dtype, device, alignment; tuned unless config."""
    (M, K), N, device = a.shape, b.shape[1], a.device
    if 0 in (M, N, K):
        return lambda a, b: a.new_zeros(M, N)
    if INTERPRETED and a.dtype == torch.bfloat16:  # the interpreter multiplies its bit patterns
        return lambda a, b: matmul(a.float(), b.float()).bfloat16()
    if not INTERPRETED and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{tuple(a.shape)} @ {tuple(b.shape)} is new: call it once before graph capture")

    # Large products repay a copy of what TMA cannot read, and of B for tf32, which wants columns contiguous.
    pad_a, pad_b, large = not fits_tma(a), not fits_tma(b), has_tma(a) and min(M, N, K) >= LARGE
    if large and 0 < a.numel() * a.itemsize * pad_a + b.numel() * b.itemsize * pad_b <= 2**26:
        launch = plan(padded(a) if pad_a else a, padded(b) if pad_b else b, precision, config)
        return lambda a, b: launch(padded(a) if pad_a else a, padded(b) if pad_b else b)
    if large and precision == "tf32" and not (pad_b or is_transposed(b)) and N <= 65535 * 64:
        launch = plan(a, transposed(b), precision, config)
        return lambda a, b: launch(a, transposed(b))

    c = a.new_empty(M, N)
    extents = [sum((n + 255) * s for n, s in zip(x.shape, x.stride(), strict=True)) for x in (a, b, c)]
    args = dict(
        M=M, N=N, K=K, M_KEY=M if M > 64 else triton.next_power_of_2(M),
        stride_am=a.stride(0), stride_ak=a.stride(1),
        stride_bk=b.stride(0), stride_bn=b.stride(1),
        A_T=is_transposed(a), B_T=is_transposed(b), FITS_TMA=not (pad_a or pad_b),
        WIDE=max(extents) >= 2**31, PRECISION=precision)

    def grid(meta):
        tiles = triton.cdiv(M, meta["BLOCK_M"] * meta["PIECES"]) * triton.cdiv(N, meta["BLOCK_N"])
        sms = 4 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count
        return min(tiles, sms) if meta["PERSISTENT"] else tiles, 1, 1

    if config or INTERPRETED:
        config = config or CONFIGS[0]
        kernel = configured_kernel[grid](a=a, b=b, c_ptr=c, **args, **config.all_kwargs())
    else:
        with TUNING:
            kernel, config = tuned_kernel[grid](a=a, b=b, c_ptr=c, **args), tuned_kernel.best_config
    meta = args | config.kwargs
    programs, rest = grid(meta), [meta[name] for name in matmul_kernel.arg_names[3:]]
    BLOCK_K = meta["BYTES_K"] // a.itemsize
    operand_a = operand_like(operand(a, meta["BLOCK_M"], BLOCK_K, meta))
    operand_b = operand_like(operand(b, BLOCK_K, meta["BLOCK_N"], meta))
    if not INTERPRETED:
        stream, hooks = triton.runtime.driver.active.get_current_stream, triton.knobs.runtime
        run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata

    def launch(a, b):
        c = a.new_empty(M, N)
        operands = operand_a(a), operand_b(b), c, *rest
        if INTERPRETED:
            matmul_kernel[programs](*operands)
        elif (hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls
              or torch.cuda.current_device() != device.index):
            with torch.cuda.device(device):
                kernel[programs](*operands)
        else:  # the same, less what the host would work out anew
            run(*programs, stream(device.index), function, metadata, None, None, None, *operands)
        return c

    return launch


def check(a, b):
    """Raise unless matmul(a, b) is a product that this file computes."""
    for x in (a, b):
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_neg():
            raise TypeError(f"{type(x)} {getattr(x, 'layout', '')}: need a strided tensor, no lazy negation")
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        raise TypeError(f"a is {a.dtype}, b is {b.dtype}: must be the same, one of {DTYPES}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or max(a.shape + b.shape) > 2**31 - 512:
        raise ValueError(f"a is {tuple(a.shape)}, b is {tuple(b.shape)}: must be (M, K), (K, N), < 2**31-511")
    if a.device != b.device or not (a.is_cuda or a.is_cpu and INTERPRETED):
        raise ValueError(f"a is on {a.device}, b is on {b.device}: must be on one GPU, or on the CPU with "
                         "TRITON_INTERPRET=1 set before Python imports triton")
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        refuse_grad(None)


def key_of(a, b):
    """All that a plan depends on, and whether there may be one."""
    tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    grad = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device,
            a.data_ptr() % 16, b.data_ptr() % 16, a.is_neg() or b.is_neg(), grad, tf32)


def matmul(a, b):
    """C = A @ B, a (M, K) and b (K, N), any strides, both float16, bfloat16 or float32, summed in float32.

    C is (M, N), contiguous, of their dtype. float32 obeys torch.set_float32_matmul_precision: ieee or tf32.
    The first call of a size, dtype or layout times the configs; Triton keeps the winner in its disk cache.
    TypeError: types, dtypes. ValueError: shapes, devices. RuntimeError: a gradient is wanted (forward only).
    """
    if torch.compiler.is_compiling():
        return matmul_op(a, b)
    try:
        launch = PLANS[key_of(a, b)]
    except (AttributeError, KeyError, RuntimeError, TypeError):  # new, or nothing to multiply
        check(a, b)
        *key, tf32 = key_of(a, b)
        with torch.cuda.device_of(a):
            launch = PLANS[(*key, tf32)] = plan(a, b, "tf32" if tf32 else "ieee")
    return launch(a, b)


@torch.library.custom_op("autotune_grouped::matmul", mutates_args=())
def matmul_op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """matmul as torch.compile sees it: one operator."""
    return matmul(a, b)


@matmul_op.register_fake
def _(a, b):
    return a.new_empty(a.shape[0], b.shape[1])


def refuse_grad(ctx, inputs=None, output=None):
    raise RuntimeError("a or b requires grad, but there is no backward: detach it or use torch.no_grad()")


matmul_op.register_autograd(refuse_grad, setup_context=refuse_grad)


def views(rows, columns, dtype):
    """Values from {-1, 0, 1}, which sum exactly: contiguous, transposed, cut out of NaN, expanded."""
    if not (INTERPRETED or torch.cuda.is_available()):
        raise unittest.SkipTest("needs a GPU, or TRITON_INTERPRET=1 set before Python imports triton")
    x = torch.randint(-1, 2, (rows, columns), device="cpu" if INTERPRETED else "cuda").to(dtype)
    cut = torch.nn.functional.pad(x, (5, 4, 3, 6), value=torch.nan)[3:-6, 5:-4]
    return x, x.T.contiguous().T, cut, x[:1].expand(rows, columns)


def assert_exact(product, a, b):
    torch.full((a.shape[0], b.shape[1]), torch.nan, dtype=a.dtype, device=a.device)  # freed: C may lie there
    exact = (a.double() @ b.double()).to(a.dtype).view(-1)  # C has such a view only if it is contiguous
    torch.testing.assert_close(product(a, b).view(-1), exact, rtol=0, atol=0)


def test_exact():
    """Values from {-1, 0, 1} in every size, layout and dtype: bitwise the float64 product."""
    sizes = (128, 128, 128), (1, 1, 1), (1, 70, 33), (129, 1, 64), (40, 50, 1), (130, 127, 65)
    empty = (0, 9, 9), (9, 0, 9), (9, 9, 0)
    for (M, N, K), dtype in itertools.product(sizes + empty, DTYPES):
        assert_exact(matmul, views(M, K, dtype)[0], views(K, N, dtype)[0])
    for dtype in DTYPES:
        for a, b in itertools.product(views(33, 21, dtype), views(21, 18, dtype)):
            assert_exact(matmul, a, b)
    for a, b in zip(views(520, 512, torch.float16), views(512, 520, torch.float16), strict=True):
        assert_exact(matmul, a, b)


@triton.jit
def order_kernel(order_ptr, grid_m, grid_n, GROUP_M):
    pid_m, pid_n = tile_of(tl.program_id(0), grid_m, grid_n, GROUP_M)
    tl.store(order_ptr + pid_m * grid_n + pid_n, tl.program_id(0))


def test_order():
    """Each tile has one program, in the docstring's order; nine programs on 9 x 9 read 54 tiles, not 90."""
    def order(grid_m, grid_n, GROUP_M):
        pids = torch.full_like(views(grid_m, grid_n, torch.float16)[0], -1, dtype=torch.int32)
        order_kernel[(grid_m * grid_n,)](pids, grid_m, grid_n, GROUP_M)
        return pids

    for grid_m, grid_n, GROUP_M in itertools.product((1, 5, 7, 8), (1, 3, 9), (1, 2, 3, 8)):
        pids = order(grid_m, grid_n, GROUP_M).flatten().sort().values
        assert pids.tolist() == list(range(grid_m * grid_n)), (grid_m, grid_n, GROUP_M)
    picture = [line.split() for line in __doc__.splitlines() if line.startswith("    ")]
    rows, groups = torch.tensor([[int(pid) for pid in line] for line in picture]).split(4, dim=1)
    assert order(4, 4, 1).tolist() == rows.tolist() and order(4, 4, 2).tolist() == groups.tolist()
    for GROUP_M, tiles in (1, 90), (3, 54):
        first = (order(9, 9, GROUP_M) < 9).nonzero()
        assert 9 * sum(len(axis.unique()) for axis in first.T) == tiles, GROUP_M


def test_configs():
    """Each config on its own is exact."""
    a, b = views(200, 136, torch.float16), views(136, 264, torch.float16)
    for config, layout in itertools.product(CONFIGS, (0, 1)):  # contiguous and transposed
        if config.kwargs["TMA"] <= has_tma(a[0]):
            assert_exact(plan(a[layout], b[layout], "ieee", config), a[layout], b[layout])


def test_copies():
    """Operands that TMA cannot read, and B in tf32, are exact through the copies that large ones get."""
    for n, dtype, precision in (131, torch.float16, "ieee"), (132, torch.float32, "tf32"):
        a, b = views(n, n, dtype)[0], views(n, n, dtype)[0]
        with unittest.mock.patch.dict(globals(), LARGE=n):
            assert_exact(plan(a, b, precision), a, b)


def test_rounding():
    """Normal values: the error is within half an ulp of C and K float32 roundings of |A| @ |B|."""
    for dtype in DTYPES:
        a, b = (torch.randn_like(views(300, 300, dtype)[0]) for _ in range(2))
        exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        bound = torch.finfo(dtype).eps / 2 * exact.abs() + 300 * 2**-24 * scale
        assert ((matmul(a, b) - exact).abs() <= bound).all(), dtype


def test_refusals():
    """Bad input raises the right exception, and its message shows it."""
    x = views(4, 4, torch.float32)[0]
    one = x[:1, :1]
    matmul(x, x)  # a plan for good operands is no pass for bad ones
    for error, words, a, b in [
        (TypeError, "list", x.tolist(), x),
        (TypeError, "sparse", x.to_sparse(), x), (TypeError, "negation", (x + 0j).conj().imag, x),
        (TypeError, "float16.*float32", x.half(), x), (TypeError, "int64", x.long(), x.long()),
        (ValueError, r"\(4,\)", x[0], x), (ValueError, r"\(4, 3\)", x[:, :3], x),
        (ValueError, "meta", x, x.to("meta")), (ValueError, "2147483137", one.expand(2**31 - 511, 1), one),
        (RuntimeError, "grad", x, x.clone().requires_grad_()),
        *[(ValueError, "TRITON_INTERPRET", x.cpu(), x.cpu())][INTERPRETED:],
    ]:
        with unittest.TestCase().assertRaisesRegex(error, words):
            matmul(a, b)


def benchmark(folder):
    """float16 squares; the float32 product 8192 x 6144 x 4096, ten times; a line for the README's table."""
    from tqdm import tqdm

    def row_order(a, b):
        plan(a, b, "ieee")  # sets best_config
        best, meta = tuned_kernel.best_config, tuned_kernel.best_config.kwargs | {"GROUP_M": 1}
        return plan(a, b, "ieee", triton.Config(meta, best.num_warps, best.num_stages))

    products = {"torch.matmul": torch.matmul, "matmul": matmul, "GROUP_M = 1": None}

    def rates(M, N, K, name):
        a = torch.randn(M, K, dtype=torch.float16, device=common.DEVICE)
        b = torch.randn(K, N, dtype=torch.float16, device=common.DEVICE)
        product = products[name] or row_order(a, b)
        ms = triton.testing.do_bench(lambda: product(a, b), quantiles=[0.5, 0.95, 0.05])
        return [common.tflops(M, N, K, t) for t in ms]

    squares = triton.testing.Benchmark(
        ["M", "N", "K"], tqdm(range(256, 4097, 128)), "name", list(products), list(products),
        "04_autotune_grouped", {}, ylabel="TFLOPS")
    triton.testing.perf_report(squares)(rates).run(print_data=True, save_path=folder)

    a, b = torch.randn(8192, 4096, device=common.DEVICE), torch.randn(4096, 6144, device=common.DEVICE)
    for precision, (name, product) in itertools.product(("highest", "high"), list(products.items())[:2]):
        torch.set_float32_matmul_precision(precision)
        error = (product(a, b) - a.double() @ b.double()).abs().max()
        ticks = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
        for tick in ticks:
            tick.record()
            product(a, b)
        torch.cuda.synchronize()
        ms = torch.tensor([start.elapsed_time(end) for start, end in itertools.pairwise(ticks)])
        rate = common.tflops(8192, 6144, 4096, ms)
        print(f"8192x6144x4096 float32 {precision:8} {name:14} max error {error:.1e}, "
              f"{ms.median():.3f} ± {ms.std():.3f} ms, {rate.median():.2f} ± {rate.std():.2f} TFLOPS")

    theirs, ours, _ = (rates(4096, 4096, 4096, name)[0] for name in products)
    print(f"| 04 | {ours:.3g} TFLOPS | {ours / theirs:.1%} of torch.matmul |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--benchmark", action="store_true", help="then time it against torch.matmul")
    folder = common.results() if parser.parse_args().benchmark else None
    for test in test_exact, test_order, test_configs, test_copies, test_rounding, test_refusals:
        test()
        print("passed:", test.__doc__)
    if folder:
        benchmark(folder)
