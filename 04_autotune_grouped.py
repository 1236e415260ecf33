# /// script
# requires-python = ">=3.10"
# dependencies = ["torch", "triton", "numpy", "matplotlib", "pandas", "tqdm"]
# ///
"""Step 4: tiles are computed in group-major order, and the fastest kind of tile is found by timing.

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
import concurrent.futures
import contextlib
import copy
import inspect
import itertools
import re
import statistics
import sys
import threading
import timeit
import unittest.mock

if __name__ == "__main__":
    import common
import torch
import triton
import triton.language as tl
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from triton.tools.tensor_descriptor import TensorDescriptor

FLOAT8 = torch.float8_e4m3fn, torch.float8_e5m2
CAPABILITIES = {torch.float16: (7, 0), torch.bfloat16: (8, 0), torch.float32: (7, 0)}  # that a card needs
CAPABILITIES |= dict.fromkeys(FLOAT8, (8, 9))
PRODUCTS = {(dtype, dtype): dtype for dtype in [*CAPABILITIES][:3]}  # dtypes of a and b: C's
PRODUCTS |= dict.fromkeys(itertools.product(FLOAT8, FLOAT8), torch.float16)
INTERPRETED = not isinstance(tl.cdiv, triton.JITFunction)


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
    TMA: tl.constexpr, TRANSPOSED: tl.constexpr, INDEX: tl.constexpr,
):
    """The tile of x at (row, column), zeros outside of x."""
    if TMA:
        return x.load([column, row]).T if TRANSPOSED else x.load([row, column])
    else:
        offs_r, offs_c = row + tl.arange(0, BLOCK_R)[:, None], column + tl.arange(0, BLOCK_C)[None, :]
        mask = (offs_r < rows) & (offs_c < columns)
        pointers = x + offs_r.to(INDEX) * stride_row + offs_c.to(INDEX) * stride_column
        return tl.load(pointers, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["M", "M_KEY"])
def matmul_kernel(
    a, b, c_ptr,  # a and b are tensor descriptors where TMA, else pointers
    M, N, K, M_KEY, stride_am, stride_ak, stride_bk, stride_bn,
    A_T: tl.constexpr, B_T: tl.constexpr, FITS_TMA: tl.constexpr, CARD: tl.constexpr,
    INDEX: tl.constexpr, PRECISION: tl.constexpr, ITEMSIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, PIECES: tl.constexpr, BLOCK_N: tl.constexpr, BYTES_K: tl.constexpr,
    GROUP_M: tl.constexpr, TMA: tl.constexpr, PERSISTENT: tl.constexpr,
):
    BLOCK_K: tl.constexpr = BYTES_K // ITEMSIZE
    RUN: tl.constexpr = min(BLOCK_K, 128)  # float8 products that a tensor core may add up, in some 13 bits
    grid_m, grid_n = tl.cdiv(M, BLOCK_M * PIECES), tl.cdiv(N, BLOCK_N)
    # Unless PERSISTENT there is one round: the compiler drops this loop, and more programs fit on an SM.
    rounds = tl.cdiv(grid_m * grid_n - tl.program_id(0), tl.num_programs(0)) if PERSISTENT else 1
    for turn in tl.range(0, rounds, flatten=PERSISTENT):
        pid_m, pid_n = tile_of(tl.program_id(0) + turn * tl.num_programs(0), grid_m, grid_n, GROUP_M)
        m, n = pid_m * BLOCK_M * PIECES, pid_n * BLOCK_N

        # 192 rows are no power of two: they are three pieces, and a tile of B serves each of them.
        accs = (tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32),) * PIECES
        for k in range(0, K, BLOCK_K):
            b_tile = load(b, k, n, K, N, stride_bk, stride_bn, BLOCK_K, BLOCK_N, TMA, B_T, INDEX)
            for piece in tl.static_range(PIECES):
                row = m + piece * BLOCK_M
                a_tile = load(a, row, k, M, K, stride_am, stride_ak, BLOCK_M, BLOCK_K, TMA, A_T, INDEX)
                acc = tl.dot(
                    a_tile, b_tile, acc=accs[0], input_precision=PRECISION, max_num_imprecise_acc=RUN)
                accs = accs[1:] + (acc,)  # so that the next piece's comes first

        for piece in tl.static_range(PIECES):
            offs_m = m + piece * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
            offs_n = n + tl.arange(0, BLOCK_N)[None, :]
            mask = (offs_m < M) & (offs_n < N)
            tl.store(c_ptr + offs_m.to(INDEX) * N + offs_n, accs[piece].to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def transpose_kernel(x, y, rows, columns, stride_row, stride_column, stride_y, BLOCK: tl.constexpr):
    pid, grid_c = tl.program_id(0), tl.cdiv(columns, BLOCK)
    offs_r = (pid // grid_c).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    offs_c = (pid % grid_c).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (offs_r < rows) & (offs_c < columns)
    value = tl.load(x + offs_r * stride_row + offs_c * stride_column, mask=mask)
    tl.store(y + offs_c * stride_y + offs_r, value, mask=mask)


FIELDS = "BLOCK_M", "PIECES", "BLOCK_N", "BYTES_K", "GROUP_M", "TMA", "PERSISTENT"
CONFIGS = [triton.Config(dict(zip(FIELDS, row, strict=True)), warps, stages) for *row, stages, warps in [
    (128, 1, 128, 128, 8, False, False, 3, 8),
    (128, 1, 128, 64, 8, False, False, 3, 4),
    (64, 1, 64, 128, 8, False, False, 3, 4),
    (64, 1, 32, 256, 8, False, False, 3, 4),
    (16, 1, 64, 256, 8, False, False, 4, 4),
    (16, 1, 32, 512, 8, True, False, 5, 4),
    (16, 1, 128, 256, 8, True, False, 4, 4),
    (64, 1, 32, 512, 8, True, False, 4, 4),
    (64, 1, 64, 128, 8, True, False, 4, 4),
    (64, 1, 64, 256, 8, True, False, 4, 4),
    (64, 1, 128, 256, 8, True, False, 4, 4),
    (64, 1, 128, 128, 8, True, False, 3, 4),
    (64, 3, 128, 64, 8, True, False, 4, 4),
    (64, 3, 128, 128, 4, True, False, 4, 4),
    (64, 3, 256, 128, 8, True, False, 3, 8),
    (128, 1, 128, 128, 8, True, True, 6, 4),
    (128, 1, 256, 128, 8, True, True, 4, 8),
]]


def is_transposed(x):
    return x.stride(0) == 1 != x.stride(1)


def has_tma(x):
    """Whether x is on a card with a tensor memory accelerator (TMA): Hopper or later."""
    return INTERPRETED or bool(torch.version.cuda) and torch.cuda.get_device_capability(x.device) >= (9, 0)


def fits_tma(x):
    """Whether TMA can read x: adjacent elements in rows, or in columns, at multiples of 16 bytes."""
    x = x.T if is_transposed(x) else x
    dense = x.stride(1) == 1 and x.shape[1] <= x.stride(0) < 2**40 // x.itemsize
    return dense and x.stride(0) * x.itemsize % 16 == x.data_ptr() % 16 == 0 and has_tma(x)


def span(x, beyond=0):
    """Elements from x's first to its last, or to so many rows and columns beyond."""
    return 1 + sum((n - 1 + beyond) * stride for n, stride in zip(x.shape, x.stride(), strict=True))


def operand(x, rows, columns, tma):
    """What the kernel takes for x: with TMA a descriptor of tiles (rows, columns), else x itself."""
    if not tma:
        return x
    return TensorDescriptor.from_tensor(*(x.T, [columns, rows]) if is_transposed(x) else (x, [rows, columns]))


def launcher(kernel):
    """Triton's function in C that launches a compiled kernel, and record(*args): what it is passed for args.

    That is what precedes the kernel's arguments (since Triton 3.7), these up to `...` and after it. Some
    are tensor maps, which Python makes of descriptors: they hold for all tensors at the same addresses.
    """
    def record(*args):
        run(*args)
        call = calls.pop(threading.get_ident())
        *outer, args = call if isinstance(call[-1], (list, tuple)) else [call]
        return outer, args[:args.index(...)], args[args.index(...) + args.count(...):]

    calls, run, native = {}, copy.copy(kernel.run), kernel.run.launch
    if getattr(native, "__closure__", None):  # not C yet: it makes the tensor maps
        native = inspect.getclosurevars(native).nonlocals["launcher"]
    descriptors = getattr(kernel.metadata, "tensordesc_meta", None)
    run.launch = sys.modules[type(run).__module__].wrap_handle_tensordesc(
        lambda *args: calls.update({threading.get_ident(): args}), kernel.src.signature, descriptors)
    return native, record


def fitting(configs, _, **args):
    """Configs for this size: by TMA where it can read (in float32 ieee by pointers too), else by pointers."""
    M, N, tma = args["M_KEY"], args["N"], args["FITS_TMA"]
    ieee = args["a"].dtype == torch.float32 and args["PRECISION"] == "ieee"
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


OPERANDS = {  # BYTES_K, not BLOCK_K: tiles of A and B fit in shared memory, whatever the dtype
    "a": lambda args: operand(args["a"], args["BLOCK_M"], args["BYTES_K"] // args["ITEMSIZE"], args["TMA"]),
    "b": lambda args: operand(args["b"], args["BYTES_K"] // args["ITEMSIZE"], args["BLOCK_N"], args["TMA"]),
}
configured_kernel = triton.heuristics(OPERANDS)(matmul_kernel)
tuned_kernel = triton.autotune(
    CONFIGS, key=["M_KEY", "N", "K", "A_T", "B_T", "FITS_TMA", "CARD", "PRECISION"],
    prune_configs_by={"early_config_prune": fitting}, do_bench=gpu_ms, cache_results=True)(configured_kernel)
PLANNING = threading.RLock()
PLANS, RECORDS = {}, {}
LARGE = 1024  # M, N and K from which copies pay: at 1023 the host's time ate their gain


def laid_out(x, along_columns):
    """A copy of x whose rows, or columns, are contiguous and start at multiples of 16 bytes."""
    rows, columns = x.shape[::-1] if along_columns else x.shape
    y = x.new_empty(rows, triton.cdiv(columns, 16) * 16)[:, :columns]
    if not along_columns:
        return y.copy_(x)
    with torch.cuda.device_of(x):
        transpose_kernel[(triton.cdiv(x.shape[0], 64) * triton.cdiv(x.shape[1], 64),)](
            x, y, *x.shape, *x.stride(), y.stride(0), BLOCK=64, enable_fp_fusion=True)
    return y.T


def plan(a, b, precision, config=None):
    """launch(a, b) for all a, b of these shapes, strides, dtypes, device, alignment; tuned unless config."""
    (M, K), N, device, dtype = a.shape, b.shape[1], a.device, PRODUCTS[a.dtype, b.dtype]
    if 0 in (M, N, K):
        return lambda a, b: a.new_zeros(M, N, dtype=dtype)
    if INTERPRETED and (dtype == torch.bfloat16 or a.dtype in FLOAT8):  # which the interpreter gets wrong
        launch_float = plan(a.float(), b.float(), precision, config)
        return lambda a, b: launch_float(a.float(), b.float()).to(dtype)
    if not INTERPRETED and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{tuple(a.shape)} @ {tuple(b.shape)} is new, or new in dtype, layout, alignment "
                           "or precision: call it once before graph capture")

    # Large products repay copies: of what TMA cannot read, and of B where tensor cores read it along K alone.
    along_k = precision == "tf32" or a.dtype in FLOAT8
    copy_a, pad_b, turn_b = not fits_tma(a), not fits_tma(b), along_k and not is_transposed(b)
    padding = a.numel() * a.itemsize * copy_a + b.numel() * b.itemsize * pad_b
    if has_tma(a) and min(M, N, K) >= LARGE and (padding or turn_b) and padding <= 2**26:
        def copied(a, b):
            return (laid_out(a, False) if copy_a else a), (laid_out(b, along_k) if pad_b or turn_b else b)

        launch_copied = plan(*copied(a, b), precision, config)
        return lambda a, b: launch_copied(*copied(a, b))

    c = a.new_empty(M, N, dtype=dtype)
    args = dict(
        M=M, N=N, K=K, M_KEY=M if M > 64 else triton.next_power_of_2(M),
        stride_am=a.stride(0), stride_ak=a.stride(1), stride_bk=b.stride(0), stride_bn=b.stride(1),
        A_T=is_transposed(a), B_T=is_transposed(b), FITS_TMA=not (copy_a or pad_b),
        CARD="" if INTERPRETED else torch.cuda.get_device_name(device),
        INDEX=tl.int64 if max(span(x, 256) for x in (a, b, c)) >= 2**31 else tl.int32,
        PRECISION=precision, ITEMSIZE=a.itemsize,
        enable_fp_fusion=True)  # Triton 3.10 is to change that default

    def grid(meta):
        tiles = triton.cdiv(M, meta["BLOCK_M"] * meta["PIECES"]) * triton.cdiv(N, meta["BLOCK_N"])
        sms = 4 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count
        return min(tiles, sms) if meta["PERSISTENT"] else tiles, 1, 1

    def launch(a, b, c, config, warmup=False):
        with torch.cuda.device_of(a):
            return configured_kernel.run(
                a=a, b=b, c_ptr=c, **args, **config.all_kwargs(), grid=grid, warmup=warmup)

    if not config and not INTERPRETED:
        # Compile side by side, then time. As Python ends, a pool takes nothing, and the tuner compiles alone.
        with contextlib.suppress(RuntimeError), concurrent.futures.ThreadPoolExecutor() as pool:
            pool.map(lambda config: launch(a, b, c, config, True), fitting(CONFIGS, None, a=a, **args))
        tuned_kernel[grid](a=a, b=b, c_ptr=c, **args)
        config = tuned_kernel.best_config
    config = config or CONFIGS[0]
    kernel = launch(a, b, c, config)
    runtime, meta, native = triton.knobs.runtime, args | config.kwargs, None
    programs, rest = grid(meta), [meta[name] for name in matmul_kernel.arg_names[3:]]
    known = triton.__version__[:3] in ("3.6", "3.7", "3.8", "3.9")
    if known and not INTERPRETED and not triton.knobs.compilation.instrumentation_mode:
        with contextlib.suppress(AttributeError, KeyError):  # of a launcher that is not Triton's
            native, record = launcher(kernel)

    def recorded(key, a, b):
        operands = [OPERANDS[name](meta | {"a": a, "b": b}) if meta["TMA"] else ... for name in OPERANDS]
        if len(RECORDS) >= 10_000:
            RECORDS.clear()
        RECORDS[key] = call = record(*programs, key[1], kernel.function, kernel.packed_metadata,
                                     None, None, None, *operands, ..., *rest)
        return call

    def launch_planned(a, b):
        c = a.new_empty(M, N, dtype=dtype)
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        if (not native or getattr(enter, "calls", True) or getattr(leave, "calls", True)
                or torch.cuda.current_device() != device.index):
            launch(a, b, c, config)
            return c
        addresses = a.data_ptr(), b.data_ptr()
        of_maps, pointers = (addresses, ()) if meta["TMA"] else ((), addresses)
        key = launch, triton.runtime.driver.active.get_current_stream(device.index), of_maps
        outer, before, after = RECORDS.get(key) or recorded(key, a, b)
        inner = *before, *pointers, c.data_ptr(), *after
        native(*outer, inner) if outer else native(*inner)
        return c

    return launch_planned


def check(a, b):
    """Raise unless a @ b is a product that this file computes."""
    if triton.knobs.runtime.interpret != INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET was changed after Python imported triton: set it before")
    for x in (a, b):
        plain = type(x) in (torch.Tensor, torch.nn.Parameter) and not x.is_nested
        if not plain or x.layout != torch.strided or x.is_neg() or x._is_zerotensor():
            raise TypeError(f"{type(x)} {getattr(x, 'layout', '')}: need a plain strided tensor, not negated")
    if (a.dtype, b.dtype) not in PRODUCTS:
        raise TypeError(f"a is {a.dtype}, b is {b.dtype}: need one dtype of {[*CAPABILITIES]}, or two float8")
    for x in (a, b):
        x.as_strided(x.shape, x.stride(), x.storage_offset())  # raises if its storage was freed or cut down
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or max(a.shape + b.shape) > 2**31 - 512:
        raise ValueError(f"a is {tuple(a.shape)}, b is {tuple(b.shape)}: must be (M, K), (K, N), < 2**31-511")
    if a.device != b.device or not (a.is_cuda or a.is_cpu and INTERPRETED):
        raise ValueError(f"a is on {a.device}, b is on {b.device}: must be on one GPU, or on the CPU with "
                         "TRITON_INTERPRET=1 set before Python imports triton")
    transformed = torch._C._are_functorch_transforms_active() or torch._functorch.eager_transforms.JVP_NESTING
    if transformed or any(forward_ad.unpack_dual(x).tangent is not None for x in (a, b)):
        raise RuntimeError("derivatives are torch.autograd's, in reverse: no torch.func, no dual tensors")
    if a.dtype in FLOAT8 and torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise RuntimeError(f"{a.dtype} has no gradient here: detach it or use torch.no_grad()")
    capability = torch.cuda.get_device_capability(a.device) if a.is_cuda else (9, 9)
    if capability < CAPABILITIES[a.dtype]:
        raise RuntimeError(f"{a.dtype} needs compute capability {CAPABILITIES[a.dtype]}, not {capability}")


def key_of(a, b):
    """All that a plan depends on, and whether there may be one."""
    tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    odd = a.is_neg() or b.is_neg() or a._is_zerotensor() or b._is_zerotensor()
    return (type(a), type(b), a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device,
            a.data_ptr() % 16, b.data_ptr() % 16, odd, "tf32" if tf32 else "ieee")


def room(x):
    """Bytes from x's first element to its storage's end."""
    return x.untyped_storage().nbytes() - x.storage_offset() * x.itemsize


def multiply(a, b):
    try:
        launch, bytes_a, bytes_b = PLANS[key_of(a, b)]
        planned = room(a) >= bytes_a and room(b) >= bytes_b  # else a storage was freed or cut down
    except Exception:  # new, or nothing to multiply
        planned = False
    if not planned:
        check(a, b)
    if INTERPRETED and a.numel() and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
        return multiply(a, b.clone())  # Triton's interpreter tells storages apart by their addresses alone
    if not planned:
        key = key_of(a, b)
        if len(PLANS) >= 10_000:
            PLANS.clear()
        with PLANNING, torch.cuda.device_of(a):
            launch = plan(a, b, key[-1])
        PLANS[key] = launch, span(a) * a.itemsize, span(b) * b.itemsize
    return launch(a, b)


def matmul(a, b):
    """C = A @ B, a (M, K) and b (K, N), any strides, summed in float32; torch.autograd has its gradients.

    Both are float16, bfloat16 or float32, and C (M, N) is contiguous, of that dtype; or each is float8_e4m3fn
    or float8_e5m2, and C is float16; of these Hopper sums up to 128 products at a time in some 13 bits.
    float32 obeys torch.set_float32_matmul_precision: ieee or tf32.
    The first call of a size, dtype or layout times the configs; Triton keeps the winner in its disk cache.
    TypeError: types, dtypes. ValueError: shapes, devices. RuntimeError: derivatives, freed storage, cards.
    """
    if torch.compiler.is_compiling() and forward_ad._current_level < 0:
        return matmul_op(a, b)
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    traced = fake or get_proxy_mode() or torch.jit.is_tracing()
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    wants_grad = torch.is_grad_enabled() and (
        isinstance(a, torch.Tensor) and a.requires_grad or isinstance(b, torch.Tensor) and b.requires_grad)
    if transformed or wants_grad and not traced:
        check(a, b)
    return (matmul_op if traced or transformed or wants_grad else multiply)(a, b)


NAMESPACE = "gemm_" + re.sub(r"(?a)\W|_", lambda char: f"_{ord(char[0]):x}_", __name__)
# One more at each load of this file: torch frees an operator whose name is taken again.
LOADS = next(n for n in itertools.count(1) if not hasattr(getattr(torch.ops, NAMESPACE), f"matmul_{n}"))


@torch.library.custom_op(f"{NAMESPACE}::matmul_{LOADS}", mutates_args=())
def matmul_op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """matmul as one operator: what torch.compile, autograd, make_fx and torch.jit.trace see."""
    if forward_ad._current_level >= 0:
        check(a, b)  # a recorded program comes here directly
    return multiply(a.detach(), b.detach())


@matmul_op.register_fake
def _(a, b):
    fit = a.ndim == b.ndim == 2 and (a.dtype, b.dtype) in PRODUCTS
    torch._check(fit and a.shape[1] == b.shape[0], lambda: f"{a.dtype} {a.shape} @ {b.dtype} {b.shape}")
    return a.new_empty(a.shape[0], b.shape[1], dtype=PRODUCTS[a.dtype, b.dtype])


def save(ctx, inputs, output):
    if inputs[0].dtype in FLOAT8:
        raise RuntimeError(f"{inputs[0].dtype} has no gradient here: detach it or use torch.no_grad()")
    a, b = inputs
    ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None)


def gradients(ctx, grad):
    a, b = ctx.saved_tensors
    return (matmul_op(grad, b.T) if ctx.needs_input_grad[0] else None,
            matmul_op(a.T, grad) if ctx.needs_input_grad[1] else None)


matmul_op.register_autograd(gradients, setup_context=save)


def views(rows, columns, dtype):
    """Values from {-1, 0, 1}: contiguous, transposed, cut out of NaN, rows expanded, every other column."""
    if not (INTERPRETED or torch.cuda.is_available()):
        raise unittest.SkipTest("needs a GPU, or TRITON_INTERPRET=1 set before Python imports triton")
    x = torch.randint(-1, 2, (rows, columns), device="cpu" if INTERPRETED else "cuda").to(dtype)
    cut = torch.nn.functional.pad(x, (5, 4, 3, 6), value=torch.nan)[3:-6, 5:-4]
    return x, x.T.contiguous().T, cut, x[:1].expand(rows, columns), x.repeat(1, 2)[:, ::2]


def assert_exact(product, a, b):
    dtype = PRODUCTS[a.dtype, b.dtype]
    torch.full((a.shape[0], b.shape[1]), torch.nan, dtype=dtype, device=a.device)  # freed: C may lie there
    exact = (a.double() @ b.double()).to(dtype).view(-1)  # C has such a view only if it is contiguous
    torch.testing.assert_close(product(a, b).view(-1), exact, rtol=0, atol=0)


def test_exact():
    """Values from {-1, 0, 1} in every size, layout and dtype: bitwise the float64 product."""
    sizes = (128, 128, 128), (1, 1, 1), (1, 70, 33), (129, 1, 64), (40, 50, 1), (130, 127, 65)
    for (M, N, K), dtype in itertools.product(sizes + ((0, 9, 9), (9, 0, 9), (9, 9, 0)), [*CAPABILITIES][:3]):
        assert_exact(matmul, views(M, K, dtype)[0], views(K, N, dtype)[0])
    pairs = list(itertools.product(views(33, 21, torch.float16), views(21, 18, torch.float16)))
    for dtype in CAPABILITIES:
        if INTERPRETED or torch.cuda.get_device_capability() >= CAPABILITIES[dtype]:
            pairs += zip(views(40, 33, dtype), views(33, 18, dtype)[::-1], strict=True)
    pairs += zip(views(520, 512, torch.float16), views(512, 520, torch.float16), strict=True)
    for a, b in pairs:
        assert_exact(matmul, a, b)


@triton.jit
def order_kernel(order_ptr, grid_m, grid_n, GROUP_M):
    pid_m, pid_n = tile_of(tl.program_id(0), grid_m, grid_n, GROUP_M)
    tl.store(order_ptr + pid_m * grid_n + pid_n, tl.program_id(0))


def test_order():
    """Each tile has one program, in the docstring's order; nine programs on 9 x 9 read 54 tiles, not 90."""
    def order(grid_m, grid_n, GROUP_M):
        pids = torch.full_like(views(grid_m, grid_n, torch.float16)[0], -1, dtype=torch.int32)
        order_kernel[(grid_m * grid_n,)](pids, grid_m, grid_n, GROUP_M, enable_fp_fusion=True)
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
    """Each config that this card can run is exact on its own, with more tiles than programs stay for."""
    M, N = (304, 264) if INTERPRETED else (4000, 1040)
    a, b = views(M, 136, torch.float16), views(136, N, torch.float16)
    for config, layout in itertools.product(CONFIGS, (0, 1)):  # contiguous and transposed
        if config.kwargs["TMA"] <= has_tma(a[0]):
            assert_exact(plan(a[layout], b[layout], "ieee", config), a[layout], b[layout])


def test_copies():
    """Operands that TMA cannot read, and B in tf32, are exact through the copies that large ones get."""
    for K, dtype, precision in (131, torch.float16, "ieee"), (132, torch.float32, "tf32"):
        with unittest.mock.patch.multiple(sys.modules[__name__], LARGE=70):
            launch = plan(views(70, K, dtype)[0], views(K, 200, dtype)[0], precision)
        assert_exact(launch, views(70, K, dtype)[0], views(K, 200, dtype)[0])


def test_rounding():
    """Normal values: the error is within half an ulp of C and K float32 roundings of |A| @ |B|."""
    torch.set_float32_matmul_precision("highest")  # an environment variable may have made it tf32
    for dtype in torch.float16, torch.bfloat16, torch.float32:
        a, b = (torch.randn_like(views(300, 300, dtype)[0]) for _ in range(2))
        exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        bound = torch.finfo(dtype).eps / 2 * exact.abs() + 300 * 2**-24 * scale
        assert ((matmul(a, b) - exact).abs() <= bound).all(), dtype


def test_gradients():
    """First and second derivatives, of values from {-1, 0, 1}, are torch.matmul's in float64."""
    def loss(product, a, b):
        return (product(a, b).square() + product(a.detach(), b) + product(a, b.detach())).sum()

    a, b = views(5, 4, torch.float32)[2], views(4, 3, torch.float32)[1]
    for derivatives in torch.autograd.functional.jacobian, torch.autograd.functional.hessian:
        ours = derivatives(lambda a, b: loss(matmul, a, b), (a, b))
        theirs = derivatives(lambda a, b: loss(torch.matmul, a, b), (a.double(), b.double()))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, check_dtype=False)


def test_refusals():
    """Bad input raises the right exception, and its message shows it."""
    x = views(4, 4, torch.float32)[0]
    one = x[:1, :1]
    matmul(x, x)  # a plan for good operands is no pass for bad ones
    for error, words, a, b in [
        (TypeError, "list", x.tolist(), x),
        (TypeError, "sparse", x.to_sparse(), x), (TypeError, "negated", torch._neg_view(x), x),
        (TypeError, "float16.*float32", x.half(), x), (TypeError, "int64", x.long(), x.long()),
        (ValueError, r"\(4,\)", x[0], x), (ValueError, r"\(4, 3\)", x[:, :3], x),
        (ValueError, "meta", x, x.to("meta")), (ValueError, "2147483137", one.expand(2**31 - 511, 1), one),
        (RuntimeError, "gradient", x.to(FLOAT8[0]), x.to(FLOAT8[0]).requires_grad_()),
        *[(ValueError, "TRITON_INTERPRET", x.cpu(), x.cpu())][INTERPRETED:],
    ]:
        with unittest.TestCase().assertRaisesRegex(error, words):
            matmul(a, b)


def benchmark(folder):
    """float16 squares; the float32 product 8192 x 6144 x 4096, ten calls by the clock; a summing line."""
    from tqdm import tqdm

    def row_order(a, b):
        plan(a, b, "ieee")  # sets best_config
        best, meta = tuned_kernel.best_config, tuned_kernel.best_config.kwargs | {"GROUP_M": 1}
        return plan(a, b, "ieee", triton.Config(meta, best.num_warps, best.num_stages))

    products = {"torch.matmul": torch.matmul, "matmul": matmul, "GROUP_M = 1": None}

    def rates(M, N, K, name):
        a, b = (torch.randn(*shape, dtype=torch.float16, device=common.DEVICE) for shape in ((M, K), (K, N)))
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
        error = (product(a, b) - a.double() @ b.double()).abs().max().item()
        ms = 1e3 * torch.tensor(timeit.repeat(
            "product(a, b); torch.cuda.synchronize()", number=1, repeat=10, globals=globals() | locals()))
        rate = common.tflops(8192, 6144, 4096, ms)
        print(f"8192x6144x4096 float32 {precision:8} {name:22} max error {error:.1e}, "
              f"{ms.median():.3f} ± {ms.std():.3f} ms, {rate.median():.2f} ± {rate.std():.2f} TFLOPS")

    theirs, ours, *_ = (rates(4096, 4096, 4096, name)[0] for name in products)
    print(f"| 04 | {ours:.3g} TFLOPS | {ours / theirs:.2%} of torch.matmul |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--benchmark", action="store_true", help="then time it against torch.matmul")
    folder = common.results() if parser.parse_args().benchmark else None
    tests = test_exact, test_order, test_configs, test_copies, test_rounding, test_gradients, test_refusals
    for test in tests:
        test()
        print("passed:", test.__doc__)
    if folder:
        benchmark(folder)
