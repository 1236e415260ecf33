"""Microseconds of one product: on the GPU alone, by do_bench, back to back, on new addresses, on these again.

    python .ci/eager.py 04_autotune_grouped.py:matmul [FILE.py:FUNCTION ...]

Float16 squares, torch.matmul beside them. Back to back is the mean of 300 calls, the least of five times,
and so the host's time where that is longer than the GPU's; on new addresses the mean of 200 pairs, once; then
of 200 pairs made after those were freed, which torch's allocator puts where they lay.
"""
import argparse
import time
from functools import partial

import measure
import torch
import triton
from torch.utils.benchmark import Timer


def back_to_back_us(call):
    timer = Timer("call()", globals={"call": call})  # waits for the GPU before it reads the clock
    return min(timer.timeit(300).mean for _ in range(5)) * 1e6


def pairs_us(product, a, b):
    pairs = [(a.clone(), b.clone()) for _ in range(200)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    for x, y in pairs:
        product(x, y)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(pairs) * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("targets", nargs="+", help="FILE.py:FUNCTION")
    parser.add_argument("--sizes", default="256,512,640,768,896,1024,1152,1280,1408,1536,1664,1792,1920,2048")
    arguments = parser.parse_args()
    products = {"torch.matmul": torch.matmul} | {target: measure.load(target) for target in arguments.targets}
    print("n: us on the GPU, by do_bench, back to back, new addresses, these again, of", ", ".join(products))
    for size in measure.parse_sizes(arguments.sizes):
        a, b = measure.operands(*size, torch.float16)
        row = []
        for product in products.values():
            call = partial(product, a, b)
            for _ in range(3):
                call()
            bench = triton.testing.do_bench(call, return_mode="median") * 1e3
            row.append(f"{measure.gpu_ms(call) * 1e3:5.1f} {bench:5.1f} {back_to_back_us(call):5.1f} "
                       f"{pairs_us(product, a, b):5.1f} {pairs_us(product, a, b):5.1f}")
        print(f"{size[0]:5}: ", "   ".join(row), flush=True)
