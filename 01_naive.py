# /// script
# requires-python = ">=3.10"
# dependencies = ["torch", "triton", "numpy", "matplotlib", "pandas", "tqdm"]
# ///
"""Step 1: one program computes one element of C = A @ B, from a row of A and a column of B. In NumPy:

    for m in range(M):
        row = A[m, :]                              # M rows are loaded
        for n in range(N):
            C[m, n] = (row * B[:, n]).sum()        # and M N columns

That is M (N + 1) rows and columns loaded, of M + N that there are. The kernel's M N programs share not even
the row: it asks for 2 M N. The next steps cut this number.
"""
import argparse
import itertools
import timeit
import unittest

if __name__ == "__main__":
    import common
import torch
import triton
import triton.language as tl

DTYPES = torch.float16, torch.bfloat16, torch.float32
INTERPRETED = not isinstance(tl.cdiv, triton.JITFunction)


@triton.jit
def naive_kernel(
    a_ptr, b_ptr, c_ptr, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_K: tl.constexpr,
):
    pid = tl.program_id(0)
    m, n = (pid // N).to(tl.int64), (pid % N).to(tl.int64)  # offsets pass 2**31

    acc = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K).to(tl.int64)
        a = tl.load(a_ptr + m * stride_am + offs_k * stride_ak, mask=offs_k < K, other=0.0)  # (BLOCK_K,)
        b = tl.load(b_ptr + offs_k * stride_bk + n * stride_bn, mask=offs_k < K, other=0.0)  # (BLOCK_K,)
        acc += a.to(tl.float32) * b.to(tl.float32)

    tl.store(c_ptr + pid, tl.sum(acc).to(c_ptr.dtype.element_ty))


def naive_matmul(a, b):
    """C = A @ B, a (M, K) and b (K, N), any strides, both float16, bfloat16 or float32, summed in float32.

    C is (M, N), contiguous, of their dtype. float32 is multiplied in float32: no tl.dot, no tf32.
    TypeError: types, dtypes. ValueError: shapes, devices. RuntimeError: derivatives, tracing, storage, cards.
    """
    if triton.knobs.runtime.interpret != INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET was changed after Python imported triton: set it before")
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    if fake or torch.jit.is_tracing() or torch.fx.experimental.proxy_tensor.get_proxy_mode():
        raise RuntimeError("FakeTensorMode, make_fx, torch.jit.trace need an operator: use step 4's matmul")
    for x in (a, b):
        plain = type(x) in (torch.Tensor, torch.nn.Parameter) and not x.is_nested
        if not plain or x.layout != torch.strided or x.is_neg() or x._is_zerotensor():
            raise TypeError(f"{type(x)} {getattr(x, 'layout', '')}: need a plain strided tensor, not negated")
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        raise TypeError(f"a is {a.dtype}, b is {b.dtype}: must be the same, one of {DTYPES}")
    for x in (a, b):
        x.as_strided(x.shape, x.stride(), x.storage_offset())  # raises if its storage was freed or cut down
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or max(a.shape + b.shape) > 2**31 - 512:
        raise ValueError(f"a is {tuple(a.shape)}, b is {tuple(b.shape)}: must be (M, K), (K, N), < 2**31-511")
    if a.device != b.device or not (a.is_cuda or a.is_cpu and INTERPRETED):
        raise ValueError(f"a is on {a.device}, b is on {b.device}: must be on one GPU, or on the CPU with "
                         "TRITON_INTERPRET=1 set before Python imports triton")
    grad = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if grad or torch.autograd.forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        raise RuntimeError("no derivatives: detach, use torch.no_grad(), or leave torch.func, dual_level")
    if a.is_cuda and a.dtype == torch.bfloat16 and torch.cuda.get_device_capability(a.device) < (8, 0):
        raise RuntimeError(f"bfloat16 needs compute capability 8.0 (Ampere): {a.device} has less")
    (M, K), N = a.shape, b.shape[1]
    if M * N >= 2**31:
        raise ValueError(f"M * N = {M} * {N}: must be below 2**31, the number of programs in a grid")
    if 0 in (M, N, K):
        return a.new_zeros(M, N)
    if INTERPRETED and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
        b = b.clone()  # Triton's interpreter tells storages apart by their addresses alone
    if INTERPRETED and a.dtype == torch.bfloat16:  # the interpreter truncates where it should round
        return naive_matmul(a.float(), b.float()).bfloat16()

    c = a.new_empty(M, N)
    with torch.cuda.device_of(a):
        # Triton 3.10 is to change the default of enable_fp_fusion.
        naive_kernel[(M * N,)](a, b, c, N, K, *a.stride(), *b.stride(), BLOCK_K=256, enable_fp_fusion=True)
    return c


def views(rows, columns, dtype):
    """Values from {-1, 0, 1}: contiguous, transposed, cut out of NaN, rows expanded, every other column."""
    if not (INTERPRETED or torch.cuda.is_available()):
        raise unittest.SkipTest("needs a GPU, or TRITON_INTERPRET=1 set before Python imports triton")
    x = torch.randint(-1, 2, (rows, columns), device="cpu" if INTERPRETED else "cuda").to(dtype)
    cut = torch.nn.functional.pad(x, (5, 4, 3, 6), value=torch.nan)[3:-6, 5:-4]
    return x, x.T.contiguous().T, cut, x[:1].expand(rows, columns), x.repeat(1, 2)[:, ::2]


def test_product():
    """Every size, layout, dtype: bitwise on {-1, 0, 1}, normal values within half an ulp and K roundings."""
    sizes = (8, 8, 256), (1, 1, 1), (1, 20, 33), (19, 1, 64), (4, 5, 1), (9, 7, 300)
    for (M, N, K), dtype in itertools.product(sizes + ((0, 9, 9), (9, 0, 9), (9, 9, 0)), DTYPES):
        for a, b in itertools.product(views(M, K, dtype), views(K, N, dtype)):
            torch.full((M, N), torch.nan, dtype=dtype, device=a.device)  # freed at once: C may lie there
            exact = (a.double() @ b.double()).to(dtype).view(-1)  # C has such a view only if it is contiguous
            torch.testing.assert_close(naive_matmul(a, b).view(-1), exact, rtol=0, atol=0)
        a, b, info = torch.randn_like(a), torch.randn_like(b), torch.finfo(dtype)
        exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        bound = info.eps / 2 * (exact.abs() + info.tiny) + K * 2**-24 * scale
        assert ((naive_matmul(a, b) - exact).abs() <= bound).all(), (M, N, K, dtype)


def test_refusals():
    """Bad input raises the right exception, and its message shows it."""
    x = views(4, 4, torch.float32)[0]
    one, leaf = x[:1, :1], x.clone().requires_grad_()
    for error, words, a, b in [
        (TypeError, "list", x.tolist(), x),
        (TypeError, "sparse", x.to_sparse(), x), (TypeError, "negated", torch._neg_view(x), x),
        (TypeError, "float16.*float32", x.half(), x), (TypeError, "int64", x.long(), x.long()),
        (ValueError, r"\(4,\)", x[0], x), (ValueError, r"\(4, 3\)", x[:, :3], x),
        (ValueError, "meta", x, x.to("meta")), (ValueError, "2147483137", one.expand(2**31 - 511, 1), one),
        (ValueError, "65536", one.expand(65536, 1), one.expand(1, 65536)),
        (RuntimeError, "derivative", x, leaf), (RuntimeError, "derivative", leaf, x),
        *[(ValueError, "TRITON_INTERPRET", x.cpu(), x.cpu())][INTERPRETED:],
    ]:
        with unittest.TestCase().assertRaisesRegex(error, words):
            naive_matmul(a, b)


def benchmark(folder):
    """float16 squares; the float32 product 8192 x 6144 x 4096, ten calls by the clock; a summing line."""
    from tqdm import tqdm

    products = {"torch.matmul": torch.matmul, "naive_matmul": naive_matmul}

    def rates(M, N, K, name):
        a, b = (torch.randn(*shape, dtype=torch.float16, device=common.DEVICE) for shape in ((M, K), (K, N)))
        ms = triton.testing.do_bench(lambda: products[name](a, b), quantiles=[0.5, 0.95, 0.05])
        return [common.tflops(M, N, K, t) for t in ms]

    squares = triton.testing.Benchmark(
        ["M", "N", "K"], tqdm(range(256, 2049, 128)), "name", list(products), list(products),
        "01_naive", {}, ylabel="TFLOPS")
    triton.testing.perf_report(squares)(rates).run(print_data=True, save_path=folder)

    a, b = torch.randn(8192, 4096, device=common.DEVICE), torch.randn(4096, 6144, device=common.DEVICE)
    for precision, (name, product) in itertools.product(("highest", "high"), products.items()):
        torch.set_float32_matmul_precision(precision)
        error = (product(a, b) - a.double() @ b.double()).abs().max().item()
        ms = 1e3 * torch.tensor(timeit.repeat(
            "product(a, b); torch.cuda.synchronize()", number=1, repeat=10, globals=globals() | locals()))
        rate = common.tflops(8192, 6144, 4096, ms)
        print(f"8192x6144x4096 float32 {precision:8} {name:22} max error {error:.1e}, "
              f"{ms.median():.3f} ± {ms.std():.3f} ms, {rate.median():.2f} ± {rate.std():.2f} TFLOPS")

    theirs, ours, *_ = (rates(4096, 4096, 4096, name)[0] for name in products)
    print(f"| 01 | {ours:.3g} TFLOPS | {ours / theirs:.2%} of torch.matmul |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--benchmark", action="store_true", help="then time it against torch.matmul")
    folder = common.results() if parser.parse_args().benchmark else None
    for test in test_product, test_refusals:
        test()
        print("passed:", test.__doc__)
    if folder:
        benchmark(folder)
