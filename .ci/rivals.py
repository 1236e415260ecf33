"""04 and two other Triton matmuls in one run on a GPU, each beside torch.matmul, by measure.py's timers.

classic: the design of Triton's matmul tutorial, in float16: pointers, K masked in every step, group-major
order, eight configs tuned by M, N and K, a plain launch. templates: what torch.compile makes of torch.matmul
when it tunes over its own Triton kernels alone. --json FILE keeps the figures.
"""
import argparse
import json
import pathlib

import measure
import torch
import triton
import triton.language as tl
from scripts import PRODUCTS

CONFIGS = [triton.Config(dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8), num_warps=warps, num_stages=stages)
           for m, n, k, stages, warps in [
               (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4),
               (64, 128, 32, 4, 4), (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2)]]


@triton.autotune(CONFIGS, key=["M", "N", "K"])
@triton.jit
def classic_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid, width = tl.program_id(0), GROUP_M * grid_n
    height = min(grid_m - pid // width * GROUP_M, GROUP_M)
    rows = (pid // width * GROUP_M + pid % width % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid % width // height * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    a = a_ptr + (rows % M)[:, None] * stride_am + steps[None, :] * stride_ak
    b = b_ptr + steps[:, None] * stride_bk + (columns % N)[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        tile_a = tl.load(a, mask=steps[None, :] < K - k, other=0.0)
        tile_b = tl.load(b, mask=steps[:, None] < K - k, other=0.0)
        acc = tl.dot(tile_a, tile_b, acc)
        a += BLOCK_K * stride_ak
        b += BLOCK_K * stride_bk
    c = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c, acc.to(tl.float16), mask=(rows[:, None] < M) & (columns[None, :] < N))


def classic(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, device=a.device, dtype=torch.float16)
    classic_kernel[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)](
        a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride())
    return c


templates = torch.compile(torch.matmul, dynamic=False, options={
    "max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON", "triton.cudagraphs": False})

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="512,1024,1536,2048,3072,4096,8192", help="as measure.py's")
    parser.add_argument("--only", choices=("04", "classic", "templates"), action="append")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rivals, rows = {"04": PRODUCTS["04"], "classic": classic, "templates": templates}, {}
    timers = {"bench": measure.bench_ms, "gpu": measure.gpu_ms}
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    for name in arguments.only or rivals:
        print(name, flush=True)
        rows[name] = measure.compare(
            rivals[name], measure.parse_sizes(arguments.sizes), torch.float16, False, timers)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))
