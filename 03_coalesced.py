"""Step 3: as step 2, but B is first laid out as its transpose, so that both tiles are read along K."""
import argparse
import timeit
import unittest

if __name__ == "__main__":
    import common
import torch
import triton
import triton.language as tl
from triton.testing import Benchmark, do_bench, perf_report

DTYPES = torch.float16, torch.bfloat16, torch.float32
INTERPRETED = triton.knobs.runtime.interpret


@triton.jit
def coalesced_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):
    pid, grid_n = tl.program_id(0).to(tl.int64), tl.cdiv(N, BLOCK)  # offsets pass 2**31
    pid_m, pid_n = pid // grid_n, pid % grid_n

    offs_m = pid_m * BLOCK + tl.arange(0, BLOCK)[:, None]
    offs_n = pid_n * BLOCK + tl.arange(0, BLOCK)[:, None]
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_offs = offs_m * stride_am + offs_k[None, :] * stride_ak  # (BLOCK, BLOCK_K)
    b_offs = offs_n * stride_bn + offs_k[None, :] * stride_bk  # (BLOCK, BLOCK_K)

    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a_mask, b_mask = (offs_m < M) & (offs_k[None, :] < K - k), (offs_n < N) & (offs_k[None, :] < K - k)
        a = tl.load(a_ptr + tl.cast(k, tl.int64) * stride_ak + a_offs, mask=a_mask, other=0.0)
        b = tl.load(b_ptr + tl.cast(k, tl.int64) * stride_bk + b_offs, mask=b_mask, other=0.0)
        acc = tl.dot(a, b.T, acc=acc, input_precision=PRECISION)

    tl.store(c_ptr + offs_m * N + offs_n.T, acc, mask=(offs_m < M) & (offs_n.T < N))


def coalesced_block_matmul(a, b):
    """C (M, N), contiguous, of a (M, K) and b (K, N), any strides, all float16, bfloat16 or float32.

    float32 obeys torch.set_float32_matmul_precision. TypeError, ValueError; RuntimeError: gradients.
    """
    dtypes = [getattr(x, "dtype", type(x)) for x in (a, b)]
    if dtypes[0] not in DTYPES or dtypes[0] != dtypes[1]:
        raise TypeError(f"a, b are {dtypes}: need torch.Tensors of one of {DTYPES}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a, b are {tuple(a.shape)}, {tuple(b.shape)}: need (M, K), (K, N)")
    if a.device != b.device or not (a.is_cuda or INTERPRETED and a.is_cpu):
        raise ValueError(f"a, b are on {a.device}, {b.device}: need one GPU, or TRITON_INTERPRET=1")
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise RuntimeError("no gradients: detach a, b")
    if INTERPRETED and a.dtype == torch.bfloat16:  # it multiplies bits
        return coalesced_block_matmul(a.float(), b.float()).bfloat16()
    (M, K), N, a, b = a.shape, b.shape[1], a.resolve_neg(), b.resolve_neg().T.contiguous().T
    tf32 = a.itemsize == 4 and not torch.version.hip and torch.backends.cuda.matmul.fp32_precision == "tf32"
    BLOCK, num_warps = (128, 8) if tf32 or a.itemsize == 2 else (64, 4)
    c = a.new_empty(M, N)
    with torch.cuda.device_of(a):
        coalesced_kernel[(triton.cdiv(M, BLOCK) * triton.cdiv(N, BLOCK),)](
            a, b, c, M, N, K, *a.stride(), *b.stride(), BLOCK, 128 // a.itemsize, "tf32" if tf32 else "ieee",
            num_warps=num_warps, enable_fp_fusion=True)  # else 3.9 warns
    return c


def test():
    """Exact on {-1, 0, 1} in any layout, normal values within half an ulp and K roundings; refusals."""
    def views(rows, columns):  # transposed, cut out of NaN, contiguous, rows expanded, every other column
        x = torch.randint(-1, 2, (rows, columns), device="cpu" if INTERPRETED else "cuda").to(dtype)
        cut = torch.nn.functional.pad(x, (5, 4, 3, 6), value=torch.nan)[3:-6, 5:-4]
        return x.T.contiguous().T, cut, x, x[:1].expand(rows, columns), x.repeat(1, 2)[:, ::2]
    for M, N, K in (128, 128, 128), (1, 70, 33), (129, 1, 64), (130, 127, 257), (9, 9, 0), (0, 9, 9):
        for dtype in DTYPES:
            for a, b in zip(views(M, K), views(K, N)[::-1], strict=True):
                exact = (a.double() @ b.double()).to(dtype)
                torch.full((M, N), torch.nan, dtype=dtype, device=a.device)  # freed: C may lie there
                assert torch.equal(coalesced_block_matmul(a, b).view(-1), exact.view(-1)), (M, N, K, dtype)
            a, b = torch.randn_like(a), torch.randn_like(b)
            exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            bound = torch.finfo(dtype).eps / 2 * exact.abs() + K * 2**-24 * scale + 2**-25
            assert ((coalesced_block_matmul(a, b) - exact).abs() <= bound).all(), dtype
    for error, words, x, y in [
        (TypeError, "list.*float32", b.tolist(), b), (TypeError, "float16.*float32", b.half(), b),
        (ValueError, r"\(9, 9\).*\(8, 9\)", b, b[:8]), (ValueError, "meta", b, b.to("meta")),
        (RuntimeError, "gradient", b, b.clone().requires_grad_()),
    ]:
        with unittest.TestCase().assertRaisesRegex(error, words):
            coalesced_block_matmul(x, y)


LINES = "product", [torch.matmul, coalesced_block_matmul], ["torch.matmul", "coalesced_block_matmul"]
HALF = {"dtype": torch.float16}


@perf_report([
    Benchmark(["M", "N", "K"], range(256, 4097, 128), *LINES, "03_float16", HALF, ylabel="TFLOPS"),
    Benchmark(["precision"], ["highest", "high"], *LINES, "03_float32", {}, ylabel="TFLOPS"),
])
def benchmark(product, M=8192, N=6144, K=4096, dtype=torch.float32, precision="highest"):
    torch.set_float32_matmul_precision(precision)
    a, b = torch.randn(M, K, dtype=dtype, device="cuda"), torch.randn(K, N, dtype=dtype, device="cuda")
    ms = do_bench(lambda: product(a, b), quantiles=[0.5, 0.95, 0.05])
    return [common.tflops(M, N, K, t) for t in ms]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmark", action="store_true", help="then time it")
    folder = common.results() if parser.parse_args().benchmark else None
    print(f"passed in {timeit.timeit(test, number=1):.1f} s: {test.__doc__}")
    if folder:
        benchmark.run(print_data=True, save_path=folder)
