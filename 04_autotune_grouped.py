"""Step 4: tiles are computed in group-major order, and the fastest kind of tile is found by timing.

Programs in flight share the L2 cache, so what they read should overlap. Row by row and in groups of 2 rows:

     0  1  2  3          0  2  4  6
     4  5  6  7          1  3  5  7
     8  9 10 11          8 10 12 14
    12 13 14 15          9 11 13 15

Programs 0 to 3 read 1 row of tiles of A and 4 columns of B, or 2 + 2. The first 9 of 9 x 9 read 90, or 54.
"""
import argparse
import concurrent.futures
import threading
import timeit
from contextlib import suppress
from unittest import TestCase, mock

if __name__ == "__main__":
    import common
import torch
import triton
import triton.language as tl
from triton.testing import Benchmark, do_bench, perf_report
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = torch.float32, torch.bfloat16, torch.float16
INTERPRETED = triton.knobs.runtime.interpret


@triton.jit
def tile_of(pid, grid_m, grid_n, GROUP_M):
    """(pid_m, pid_n) of tile number pid: down each group of GROUP_M rows of tiles, column by column."""
    group, within = pid // (GROUP_M * grid_n), pid % (GROUP_M * grid_n)
    group_m = min(grid_m - group * GROUP_M, GROUP_M)  # the last group may be lower
    return group * GROUP_M + within % group_m, within // group_m


@triton.jit
def matmul_kernel(
    a, b, c,  # tensor descriptors if TMA, c if also PERSISTENT
    M, N, K, M_KEY, stride_a, stride_b,  # M_KEY: tuner's
    A_T: tl.constexpr, B_T: tl.constexpr, TMA: tl.constexpr, NUM_SMS: tl.constexpr, TF32: tl.constexpr,
    BLOCK_M: tl.constexpr, PIECES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, PERSISTENT: tl.constexpr, UNIT: tl.constexpr,
):
    N = N // UNIT * UNIT  # hint: wide stores
    SWAP: tl.constexpr = TF32 and not B_T  # C.T = B.T @ A.T: right side along K
    if not TMA:
        a = tl.make_tensor_descriptor(
            a, [K, M] if A_T else [M, K], [stride_a, 1], [BLOCK_K, BLOCK_M] if A_T else [BLOCK_M, BLOCK_K])
        b = tl.make_tensor_descriptor(
            b, [N, K] if B_T else [K, N], [stride_b, 1], [BLOCK_N, BLOCK_K] if B_T else [BLOCK_K, BLOCK_N])
    grid_m, grid_n = tl.cdiv(M, BLOCK_M * PIECES), tl.cdiv(N, BLOCK_N)
    rounds = tl.cdiv(grid_m * grid_n - tl.program_id(0), NUM_SMS) if PERSISTENT else 1
    for turn in tl.range(0, rounds, flatten=PERSISTENT):  # one round is no loop
        pid_m, pid_n = tile_of(tl.program_id(0) + turn * NUM_SMS, grid_m, grid_n, GROUP_M)
        m, n = pid_m * BLOCK_M * PIECES, pid_n * BLOCK_N

        accs = (tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), dtype=tl.float32),) * PIECES
        for k in range(0, K, BLOCK_K):
            b_tile = b.load([n, k]).T if B_T else b.load([k, n])
            for piece in tl.static_range(PIECES):  # of 192 rows
                a_tile = a.load([k, m + piece * BLOCK_M]).T if A_T else a.load([m + piece * BLOCK_M, k])
                left, right = ((b_tile + 0.0).T, a_tile.T) if SWAP else (a_tile, b_tile)  # + 0.0: register
                accs = accs[1:] + (tl.dot(left, right, accs[0], "tf32" if TF32 else "ieee"),)

        for piece in tl.static_range(PIECES):
            row, acc = m + piece * BLOCK_M, accs[piece].T if SWAP else accs[piece]
            offs_m, offs_n = row + tl.arange(0, BLOCK_M)[:, None], n + tl.arange(0, BLOCK_N)[None, :]
            # An epilogue goes here, on acc; its tensors follow c: matmul(a, b, name=tensor).
            if TMA and PERSISTENT:  # in halves: less shared memory
                left, right = tl.split(acc.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1))
                c.store([row, n], left.to(c.dtype))
                c.store([row, n + BLOCK_N // 2], right.to(c.dtype))
            else:
                tl.store(c + offs_m.to(tl.int64) * N + offs_n, acc, mask=(offs_m < M) & (offs_n < N))


FIELDS = "BLOCK_M PIECES BLOCK_N BLOCK_K GROUP_M PERSISTENT".split()
CONFIGS = [triton.Config(dict(zip(FIELDS, row, strict=True)), warps, stages) for *row, stages, warps in [
    (128, 1, 128, 64, 4, False, 4, 8),
    (128, 1, 128, 32, 8, False, 3, 4),
    (64, 1, 128, 64, 4, False, 3, 4),
    (64, 1, 128, 128, 8, False, 4, 4),
    (64, 1, 64, 64, 8, False, 3, 4),
    (64, 1, 64, 128, 8, False, 4, 4),
    (64, 1, 64, 256, 8, False, 3, 4),
    (64, 1, 32, 256, 8, False, 4, 4),
    (64, 3, 64, 128, 8, False, 3, 4),
    (64, 3, 128, 64, 4, False, 4, 4),
    (128, 1, 128, 64, 4, True, 6, 4),
    (128, 1, 256, 64, 4, True, 4, 8),
    (16, 1, 32, 256, 8, False, 5, 4),
    (16, 1, 128, 128, 8, False, 4, 4),
]]


def layouts(M, N, K, stride_a, stride_b, A_T, B_T, TMA, PERSISTENT, BLOCK_M, BLOCK_N, BLOCK_K, **_):
    """Shape, strides, tile of the tensor descriptors of a, b and c that the host makes, if any."""
    a = ([K, M], [stride_a, 1], [BLOCK_K, BLOCK_M]) if A_T else ([M, K], [stride_a, 1], [BLOCK_M, BLOCK_K])
    b = ([N, K], [stride_b, 1], [BLOCK_N, BLOCK_K]) if B_T else ([K, N], [stride_b, 1], [BLOCK_K, BLOCK_N])
    return TMA and a, TMA and b, TMA and PERSISTENT and ([M, N], [N, 1], [BLOCK_M, BLOCK_N // 2])


def offered(configs, _, warmup, **args):
    """Those that suit and compile, side by side; float32 has half the BLOCK_K."""
    half = args["c"].itemsize // 2
    configs = [
        triton.Config(y | {"BLOCK_K": y["BLOCK_K"] // half}, x.num_warps, x.num_stages)
        for x in configs for y in [x.kwargs] if y["PERSISTENT"] * 8 <= args["UNIT"] * half
        and (y["BLOCK_M"] > 16 or args["M_KEY"] <= 16) and (half == 1 or args["TF32"] or y["BLOCK_N"] <= 64)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        jobs = {x: pool.submit(desc_kernel.warmup, **args, **x.all_kwargs()) for x in configs}
    good = type(None), SystemError  # from ast, in threads
    return [x for x in jobs if isinstance(jobs[x].exception(), good)] or jobs[configs[0]].result()


desc = lambda x, layout: TensorDescriptor(x, *layout) if layout else x
desc_kernel = triton.heuristics({
    x: lambda args, x=x, i=i: desc(args[x], layouts(**args)[i]) for i, x in enumerate("abc")})(matmul_kernel)
tuned_kernel = triton.autotune(
    CONFIGS[:1] if INTERPRETED else CONFIGS,
    key=["M_KEY", "N", "K", "A_T", "B_T", "TMA", "NUM_SMS", "TF32"],
    prune_configs_by={"early_config_prune": offered}, cache_results=True,
    do_bench=lambda fn, quantiles: do_bench(  # 0.4 ms hide the host
        lambda: (torch.zeros(2**26, device="cuda").neg_().neg_().neg_(), fn()), 5, 20, quantiles=quantiles),
)(desc_kernel)
PLANS, TUNING = {}, threading.Lock()


def laid_out(x, turned=False):
    """x, or a copy, as a descriptor takes it: rows, or columns if turned, start at multiples of 16 bytes."""
    turned = turned or x.stride(0) == 1 != x.stride(1)
    y = x.T if turned else x
    (rows, columns), pitch = y.shape, y.stride(0)
    if y.stride(1) == 1 and columns <= pitch < 2**36 and y.data_ptr() % 16 == pitch * y.itemsize % 16 == 0:
        return x
    y = y.new_empty(rows, columns + -columns % (64 if columns > 512 else 8))[:, :columns].copy_(y)
    return y.T if turned else y


def plan(a, b, tf32=False, **more):
    """launch(a, b) for all operands of these shapes, strides, dtypes, device, alignment."""
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        raise TypeError(f"a, b are {a.dtype}, {b.dtype}: need one of {DTYPES}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a, b are {tuple(a.shape)}, {tuple(b.shape)}: need (M, K), (K, N)")
    if a.device != b.device or not (a.is_cuda or INTERPRETED and a.is_cpu):
        raise ValueError(f"a, b are on {a.device}, {b.device}: need one GPU, or TRITON_INTERPRET=1")
    (M, K), N = a.shape, b.shape[1]
    if 0 in (M, N, K):
        return lambda a, b, **more: a.new_zeros(M, N)
    turn_b = tf32 and a.stride(0) == 1  # then neither A nor B lies along K
    x, y, c = laid_out(a), laid_out(b, turn_b), a.new_empty(M, N)
    copies, gpu = x is not a or y is not b, a.is_cuda and torch.cuda.get_device_properties(a.device)
    tma, sms = not gpu or gpu.major > 8 and not torch.version.hip, gpu.multi_processor_count if gpu else 2
    args = dict(
        M=M, N=N, K=K, M_KEY=M if M > 64 else triton.next_power_of_2(M), TF32=tf32,
        stride_a=max(x.stride()), A_T=x.stride(0) == 1, stride_b=max(y.stride()), B_T=y.stride(0) == 1,
        TMA=tma, NUM_SMS=sms, UNIT=min(N & -N, 16))
    tiles = lambda meta: triton.cdiv(M, meta["BLOCK_M"] * meta["PIECES"]) * triton.cdiv(N, meta["BLOCK_N"])
    grid = lambda meta: (min(tiles(meta), sms) if meta["PERSISTENT"] else tiles(meta), 1, 1)
    with TUNING, torch.cuda.device_of(a):  # None if interpreted
        kernel = tuned_kernel[grid](a=x, b=y, c=c, **more, **args, enable_fp_fusion=True) or matmul_kernel
        meta, names = args | tuned_kernel.best_config.kwargs, matmul_kernel.arg_names[3:]
    run, rest = kernel[grid(meta)], [meta[x] for x in names[len(more):]]
    in_a, in_b, in_c = layouts(**meta)

    def launch(a, b, **more):
        a, b = (laid_out(a), laid_out(b, turn_b)) if copies else (a, b)
        c = a.new_empty(M, N)
        with torch.cuda.device_of(a):
            run(desc(a, in_a), desc(b, in_b), desc(c, in_c), *[more[x] for x in names[:len(more)]], *rest)
        return c

    return launch


def matmul(a, b, **more):
    """C (M, N), contiguous, of a (M, K) and b (K, N), any strides, all float16, bfloat16 or float32.

    float32 obeys torch.set_float32_matmul_precision. The first call of a size is tuned: no graph captures it.
    TypeError, ValueError; RuntimeError: forward-mode gradients.
    """
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        raise TypeError(f"a, b are {type(a)}, {type(b)}: need torch.Tensors")
    if torch.compiler.is_compiling() or torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return matmul_op(a, b, **more)
    if any(torch.autograd.forward_ad.unpack_dual(x).tangent is not None for x in (a, b)):
        raise RuntimeError("no gradients of dual tensors")
    if INTERPRETED and a.dtype == torch.bfloat16 == b.dtype:  # it multiplies bits
        return matmul(a.float(), b.float(), **more).bfloat16()
    a, b, switch = a.resolve_neg(), b.resolve_neg(), torch.backends.cuda.matmul
    tf32 = a.dtype == torch.float32 and switch.fp32_precision == "tf32" and not torch.version.hip
    key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device, tf32,
           a.data_ptr() % 16, b.data_ptr() % 16, *[(n, x.dtype, x.data_ptr() % 16) for n, x in more.items()])
    return (PLANS.get(key) or PLANS.setdefault(key, plan(a, b, tf32, **more)))(a, b, **more)


matmul_op = torch.library.custom_op(  # what torch.compile and autograd see
    "gemm::m_" + __name__.replace(".", "_"), matmul, mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor")
matmul_op.register_fake(lambda a, b: a.new_empty(a.shape[0], b.shape[1]))
matmul_op.register_autograd(
    lambda ctx, grad: (matmul_op(grad, ctx.saved_tensors[1].T) if ctx.needs_input_grad[0] else None,
                       matmul_op(ctx.saved_tensors[0].T, grad) if ctx.needs_input_grad[1] else None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def test_product():
    """Exact on {-1, 0, 1}, any layout, configs that fit; normal within half an ulp, K roundings; refusals."""
    def views(rows, columns):  # transposed, cut out of NaN, contiguous, rows expanded, every other column
        x = torch.randint(-1, 2, (rows, columns), device="cpu" if INTERPRETED else "cuda").to(dtype)
        cut = torch.nn.functional.pad(x, (5, 4, 3, 6), value=torch.nan)[3:-6, 5:-4]
        return x.T.contiguous().T, cut, x, x[:1].expand(rows, columns), x.repeat(1, 2)[:, ::2]
    for M, N, K in (128, 128, 128), (1, 70, 33), (129, 1, 64), (130, 127, 193), (9, 9, 0), (0, 9, 9):
        for dtype in DTYPES:
            for a, b in zip(views(M, K), views(K, N)[::-1], strict=True):
                exact = (a.double() @ b.double()).to(dtype)
                torch.full((M, N), torch.nan, dtype=dtype, device=a.device)  # C may lie there
                assert torch.equal(matmul(a, b).view(-1), exact.view(-1)), (M, N, K, dtype)
            a, b = torch.randn_like(a), torch.randn_like(b)
            exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            bound = torch.finfo(dtype).eps / 2 * exact.abs() + K * 2**-24 * scale + 2**-25
            assert ((matmul(a, b) - exact).abs() <= bound).all(), dtype
    for i, config in enumerate(CONFIGS):  # alone
        with mock.patch.object(tuned_kernel, "configs", [config]), suppress(triton.OutOfResources):
            a, b = views(264, 72)[i % 2], views(72, 136)[2]
            assert torch.equal(plan(a, b)(-a, b).double(), -a.double() @ b.double()), config
    for error, words, x, y in (TypeError, "16.*32", b, b.float()), (ValueError, "72.*72", b, b):
        with TestCase().assertRaisesRegex(error, words):
            matmul(x, y)


def test_order():
    """Tiles come in the docstring's order; the first nine programs on 9 x 9 read 54 tiles, not 90."""
    order = lambda side, GROUP_M: [tile_of.fn(pid, side, side, GROUP_M) for pid in range(side * side)]
    picture = [line.split() for line in __doc__.splitlines() if line.startswith("    ")]
    for GROUP_M, left in (1, 0), (2, 4):
        assert [picture[m][left + n] for m, n in order(4, GROUP_M)] == [str(pid) for pid in range(16)]
    for GROUP_M, tiles in (1, 90), (3, 54):
        assert 9 * sum(len(set(axis)) for axis in zip(*order(9, GROUP_M)[:9], strict=True)) == tiles


def test_gradients():
    """Second derivatives on {-1, 0, 1} are torch.matmul's in float64."""
    a, b = torch.randint(-1, 2, (2, 4, 4), device="cpu" if INTERPRETED else "cuda").float()
    ours, theirs = (
        torch.autograd.functional.hessian(lambda a, b, f=f: (f(a, b) * f(a.data, b) * f(a, b.data)).sum(), x)
        for f, x in ((matmul, (a, b)), (torch.matmul, (a.double(), b.double()))))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, check_dtype=False)


FLOAT32 = {"dtype": torch.float32}
LINES = "product", [torch.matmul, matmul, None], ["torch.matmul", "matmul", "GROUP_M = 1"]


@perf_report([
    Benchmark(["M", "N", "K"], range(256, 4097, 128), *LINES, "04_float16", {}, ylabel="TFLOPS"),
    Benchmark(["precision"], ["highest", "high"], *LINES, "04_float32", FLOAT32, ylabel="TFLOPS"),
])
def benchmark(product, M=8192, N=6144, K=4096, dtype=torch.float16, precision="highest"):
    torch.set_float32_matmul_precision(precision)
    a, b = torch.randn(M, K, dtype=dtype, device="cuda"), torch.randn(K, N, dtype=dtype, device="cuda")
    if product is None:  # tuned, in row order
        plan(a, b, precision == "high")
        with mock.patch.dict(tuned_kernel.best_config.kwargs, GROUP_M=1):
            product = plan(a, b, precision == "high")
    ms = do_bench(lambda: product(a, b), quantiles=[0.5, 0.95, 0.05])
    return [common.tflops(M, N, K, t) for t in ms]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmark", action="store_true", help="then time it")
    folder = common.results() if parser.parse_args().benchmark else None
    for test in test_product, test_order, test_gradients:
        print(f"passed in {timeit.timeit(test, number=1):.1f} s: {test.__doc__}")
    if folder:
        benchmark.run(print_data=True, save_path=folder)
