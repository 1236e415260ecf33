"""The whole ladder in one run on a GPU: TFLOPS by do_bench, median, each product beside torch.matmul.

01 to 04 at 4096 x 4096 x 4096 in float16 and at 8192 x 6144 x 4096 in float32, ieee and tf32; then 04 in row
order (GROUP_M = 1) and in its own at 4096, 8192 and 16384; then 04 in float8, beside torch._scaled_mm on a
transposed b, the one it takes. Torch's is timed before and after each. --json FILE keeps the figures.
"""
import argparse
import json
import pathlib

import torch
import triton
from scripts import MODULES, PRODUCTS

GROUPED = MODULES["04"]


def grouped_by(a, b, GROUP_M=None):
    """04's product of a and b with its tuned config, or with another GROUP_M in it; and the config."""
    GROUPED.plan(a, b, "ieee")
    best = GROUPED.tuned_kernel.best_config
    meta = best.kwargs | {"GROUP_M": GROUP_M or best.kwargs["GROUP_M"]}
    config = triton.Config(meta, best.num_warps, best.num_stages)
    return GROUPED.plan(a, b, "ieee", config), str(config)


def timed(product, theirs, a, b):
    """TFLOPS of product and of theirs, which is timed before and after it."""
    ms = [triton.testing.do_bench(lambda f=f: f(a, b), rep=200, return_mode="median")
          for f in (theirs, product, theirs)]
    work = 2 * a.shape[0] * a.shape[1] * b.shape[1] * 1e-9
    return work / ms[1], 2 * work / (ms[0] + ms[2])


def draw(M, N, K, dtype):
    return torch.randn(M, K, device="cuda").to(dtype), torch.randn(K, N, device="cuda").to(dtype)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
    rows = []

    def add(step, what, product, a, b, config="", theirs=torch.matmul):
        ours, theirs = timed(product, theirs, a, b)
        size = f"{a.shape[0]}x{b.shape[1]}x{a.shape[1]}"
        rows.append(dict(step=step, what=what, size=size, tflops=ours, torch_tflops=theirs, config=config))
        print(f"| {step} | {what} | {size} | {ours:.2f} | {theirs:.1f} | {ours / theirs:.4f} | {config}")

    print(card)
    print("| step | what | M x N x K | TFLOPS | torch.matmul | share | config |")
    for what, size, dtype, switch in [
        ("float16", (4096, 4096, 4096), torch.float16, "highest"),
        ("float32 ieee", (8192, 6144, 4096), torch.float32, "highest"),
        ("float32 tf32", (8192, 6144, 4096), torch.float32, "high"),
    ]:
        torch.set_float32_matmul_precision(switch)
        a, b = draw(*size, dtype)
        for step, product in PRODUCTS.items():
            add(step, what, product, a, b)
        add("03", f"{what}, transpose apart", PRODUCTS["03"], a, b.T.contiguous().T)
    for n in 4096, 8192, 16384:
        a, b = draw(n, n, n, torch.float16)
        for GROUP_M in 1, None:
            product, config = grouped_by(a, b, GROUP_M)
            add("04", "row order" if GROUP_M else "tuned order", product, a, b, config)
    one = torch.ones((), device="cuda")
    a, b = (torch.randn(4096, 4096, device="cuda").to(torch.float8_e4m3fn) for _ in "ab")
    for what, view in ("float8_e4m3fn, b transposed", b.T), ("float8_e4m3fn, b as it lies", b):
        add("04", what, PRODUCTS["04"], a, view, theirs=lambda a, _: torch._scaled_mm(
            a, b.T, one, one, out_dtype=torch.float16))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(dict(card=card, rows=rows), indent=1))


if __name__ == "__main__":
    main()
