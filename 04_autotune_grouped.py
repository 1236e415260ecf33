# /// script
# requires-python = ">=3.10"
# dependencies = ["torch", "triton", "numpy", "matplotlib", "pandas", "tqdm"]
# ///
"""Step 4: as step 2, but tiles are computed in group-major order, and the tile's shape is tuned by timing.

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
import functools
import itertools
import unittest

if __name__ == "__main__":
    import common
import torch
import triton
import triton.language as tl

DTYPES = torch.float16, torch.bfloat16, torch.float32
INTERPRETED = not isinstance(tl.cdiv, triton.JITFunction)
if triton.knobs.runtime.interpret != INTERPRETED:
    raise RuntimeError("TRITON_INTERPRET was changed after Python imported triton: set it before")



def config(BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, num_stages, num_warps):
    meta = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "GROUP_M": GROUP_M}
    return triton.Config(meta, num_stages=num_stages, num_warps=num_warps)


CONFIGS = [
    config(64, 32, 64, 8, 4, 4),
    config(64, 64, 64, 8, 4, 4),
    config(64, 128, 64, 8, 4, 4),
    config(128, 128, 64, 8, 3, 4),
    config(128, 256, 64, 8, 3, 8),
    config(64, 64, 32, 8, 3, 4),
    config(64, 128, 32, 8, 3, 4),
    config(128, 128, 32, 8, 3, 8),
]


@triton.jit
def tile_of(pid, grid_m, grid_n, GROUP_M):
    """(pid_m, pid_n) of program pid: down each group of GROUP_M rows of tiles, column by column."""
    group = pid // (GROUP_M * grid_n)
    group_m = min(grid_m - group * GROUP_M, GROUP_M)  # the last group may be lower
    within = pid % (GROUP_M * grid_n)
    return group * GROUP_M + within % group_m, within // group_m


@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_ak,
    stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):
    pid_m, pid_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)

    offs_m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am + offs_k[None, :] * stride_ak  # (BLOCK_M, BLOCK_K)
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + (offs_n % N)[None, :] * stride_bn  # (BLOCK_K, BLOCK_N)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a, b = tl.load(a_ptrs), tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        acc = tl.dot(a, b, acc=acc, input_precision=PRECISION)
        a_ptrs += tl.cast(stride_ak, tl.int64) * BLOCK_K
        b_ptrs += tl.cast(stride_bk, tl.int64) * BLOCK_K

    c_ptrs = c_ptr + offs_m[:, None] * N + offs_n[None, :]  # (BLOCK_M, BLOCK_N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def fitting(configs, _, **args):
    """The configs whose tile is less than twice as high and wide as C, or the smallest."""
    return [c for c in configs if c.kwargs["BLOCK_M"] < 2 * args["M"] and c.kwargs["BLOCK_N"] < 2 * args["N"]
            ] or configs[:1]


def tuned(configs):
    """matmul_kernel with the fastest config for each size, dtype, layout; the first one when interpreted."""
    return triton.autotune(
        configs[:1] if INTERPRETED else configs,
        key=["M", "N", "K", "stride_ak", "stride_bk", "PRECISION"],
        prune_configs_by={"early_config_prune": fitting},
    )(matmul_kernel)


def launch(kernel, a, b):
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    with torch.cuda.device_of(a):
        kernel[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)](
            a, b, c,
            M, N, K,
            *a.stride(),
            *b.stride(),
            PRECISION="tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
        )
    return c


group_major_kernel = tuned(CONFIGS)


def matmul(a, b):
    """C = A @ B, a (M, K) and b (K, N), any strides, both float16, bfloat16 or float32, summed in float32.

    C is (M, N), contiguous, of their dtype. float32 obeys torch.set_float32_matmul_precision: ieee or tf32.
    TypeError: types, dtypes. ValueError: shapes, devices. RuntimeError: a gradient is wanted (forward only).
    """
    for x in (a, b):
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_neg():
            raise TypeError(f"{type(x)} {getattr(x, 'layout', '')}: need a strided tensor, no lazy negation")
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        raise TypeError(f"a is {a.dtype}, b is {b.dtype}: must be the same, one of {DTYPES}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or max(a.shape + b.shape) >= 2**31:
        raise ValueError(f"a is {tuple(a.shape)}, b is {tuple(b.shape)}: must be (M, K), (K, N), < 2**31")
    if a.device != b.device or not (a.is_cuda or a.is_cpu and INTERPRETED):
        raise ValueError(f"a is on {a.device}, b is on {b.device}: must be on one GPU, or on the CPU with "
                         "TRITON_INTERPRET=1 set before Python imports triton")
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise RuntimeError("a or b requires grad, but there is no backward: detach it or use torch.no_grad()")
    (M, K), N = a.shape, b.shape[1]
    if 0 in (M, N, K):
        return a.new_zeros(M, N)
    if INTERPRETED and a.dtype == torch.bfloat16:  # the interpreter multiplies its bit patterns
        return matmul(a.float(), b.float()).bfloat16()
    return launch(group_major_kernel, a, b)


def views(rows, columns, dtype):
    """Values from {-1, 0, 1}, which sum exactly: contiguous, transposed, cut out of NaN, expanded."""
    if not (INTERPRETED or torch.cuda.is_available()):
        raise unittest.SkipTest("needs a GPU, or TRITON_INTERPRET=1 set before Python imports triton")
    x = torch.randint(-1, 2, (rows, columns), device="cpu" if INTERPRETED else "cuda").to(dtype)
    cut = torch.nn.functional.pad(x, (5, 4, 3, 6), value=torch.nan)[3:-6, 5:-4]
    return x, x.T.contiguous().T, cut, x[:1].expand(rows, columns)


def test_exact():
    """Values from {-1, 0, 1} in every size, layout and dtype: bitwise the float64 product."""
    sizes = (128, 128, 128), (1, 1, 1), (1, 70, 33), (129, 1, 64), (40, 50, 1), (130, 127, 65)
    empty = (0, 9, 9), (9, 0, 9), (9, 9, 0)
    for (M, N, K), dtype in itertools.product(sizes + empty, DTYPES):
        for a, b in itertools.product(views(M, K, dtype), views(K, N, dtype)):
            torch.full((M, N), torch.nan, dtype=dtype, device=a.device)  # freed at once: C may lie there
            exact = (a.double() @ b.double()).to(dtype)
            torch.testing.assert_close(matmul(a, b), exact, rtol=0, atol=0)


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
    for error, words, a, b in [
        (TypeError, "list", x.tolist(), x),
        (TypeError, "sparse", x.to_sparse(), x),
        (TypeError, "float16.*float32", x.half(), x), (TypeError, "int64", x.long(), x.long()),
        (ValueError, r"\(4,\)", x[0], x), (ValueError, r"\(4, 3\)", x[:, :3], x),
        (ValueError, "meta", x, x.to("meta")), (ValueError, "2147483648", one.expand(2**31, 1), one),
        (RuntimeError, "grad", x, x.clone().requires_grad_()),
        *[(ValueError, "TRITON_INTERPRET", x.cpu(), x.cpu())][INTERPRETED:],
    ]:
        with unittest.TestCase().assertRaisesRegex(error, words):
            matmul(a, b)


def benchmark(folder):
    """float16 squares; the float32 product 8192 x 6144 x 4096, ten times; a line for the README's table."""
    from tqdm import tqdm

    in_rows = [triton.Config(c.kwargs | {"GROUP_M": 1}, c.num_warps, c.num_stages) for c in CONFIGS]
    products = {"torch.matmul": torch.matmul, "matmul": matmul}
    products["GROUP_M = 1"] = functools.partial(launch, tuned(in_rows))

    def rates(M, N, K, name):
        a = torch.randn(M, K, dtype=torch.float16, device="cuda")
        b = torch.randn(K, N, dtype=torch.float16, device="cuda")
        ms = triton.testing.do_bench(lambda: products[name](a, b), quantiles=[0.5, 0.95, 0.05])
        return [common.tflops(M, N, K, t) for t in ms]

    squares = triton.testing.Benchmark(
        ["M", "N", "K"], tqdm(range(256, 4097, 128)), "name", list(products), list(products),
        "04_autotune_grouped", {}, ylabel="TFLOPS")
    triton.testing.perf_report(squares)(rates).run(print_data=True, save_path=folder)

    a, b = torch.randn(8192, 4096, device="cuda"), torch.randn(4096, 6144, device="cuda")
    for precision, (name, product) in itertools.product(("highest", "high"), products.items()):
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
              f"{ms.median():.3f} ± {ms.std():.3f} ms, {rate.median():.1f} ± {rate.std():.1f} TFLOPS")

    theirs, ours, _ = (rates(4096, 4096, 4096, name)[0] for name in products)
    print(f"| 04 | {ours:.0f} TFLOPS | {ours / theirs:.2f} of torch.matmul |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--benchmark", action="store_true", help="then time it against torch.matmul")
    folder = common.results() if parser.parse_args().benchmark else None
    for test in test_exact, test_order, test_rounding, test_refusals:
        test()
        print("passed:", test.__doc__)
    if folder:
        benchmark(folder)
