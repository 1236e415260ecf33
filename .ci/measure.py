#!/usr/bin/env python3
"""Hold a script's matmul against torch.matmul (cuBLAS) on one GPU, both in the same run.

    python3 .ci/measure.py 04_autotune_grouped.py:matmul                     # 256, 384 .. 4096, and 8192
    python3 .ci/measure.py 04_autotune_grouped.py:matmul --sizes 1536,3072   # squares
    python3 .ci/measure.py 04_autotune_grouped.py:matmul --sizes 8192x6144x4096 --dtype float32 [--tf32]
    python3 .ci/measure.py 04_autotune_grouped.py:matmul --launch            # host cost of one call
    python3 .ci/measure.py 04_autotune_grouped.py:matmul --first             # the first call of a new shape

A ratio is (time of torch.matmul) / (time of the script): above 1 the script is ahead.
  bench  triton.testing.do_bench, median: what a user who benchmarks sees, host cost included
         where the host cannot keep ahead of the GPU.
  gpu    GPU time alone: events recorded inside a CUDA graph, L2 flushed before every launch.
torch.matmul is timed before and after the script and the two are averaged, so a clock that drifts
falls on both. The output is poisoned with NaN first and checked against float64.
"""
import argparse
import importlib.util
import json
import pathlib
import statistics
import sys
import time
from functools import partial

import torch
import triton

SEED_SIZES = [128 * i for i in range(2, 33)]  # 256 .. 4096
L2_FLUSH_BYTES = 256 * 1024 * 1024


def load(target):
    """'path/file.py:function' -> the function. The file's folder goes on sys.path, as when it is run."""
    path, _, name = target.partition(":")
    path = pathlib.Path(path).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("script_under_test", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def parse_sizes(text):
    if text == "seed":
        return [(n, n, n) for n in SEED_SIZES + [8192]]
    out = []
    for item in text.split(","):
        dims = [int(d) for d in item.split("x")]
        out.append(tuple(dims * 3 if len(dims) == 1 else dims))
    return out


def operands(m, n, k, dtype, transposed_b=False):
    a = torch.randn(m, k, device="cuda", dtype=torch.float32).to(dtype)
    b = torch.randn(n, k, device="cuda", dtype=torch.float32).to(dtype).T if transposed_b else \
        torch.randn(k, n, device="cuda", dtype=torch.float32).to(dtype)
    return a, b


def bench_ms(fn):
    return triton.testing.do_bench(fn, warmup=10, rep=50, return_mode="median")


_flush = None


def gpu_ms(fn, launches=12, replays=3):
    """Median GPU milliseconds of fn, from events inside a CUDA graph, cold L2."""
    global _flush
    if _flush is None:
        _flush = torch.empty(L2_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    fn()
    torch.cuda.synchronize()
    begin = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(launches)]
    end = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(launches)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            _flush.zero_()
            begin[i].record()
            fn()
            end[i].record()
    times = []
    for _ in range(replays):
        graph.replay()
        torch.cuda.synchronize()
        times += [b.elapsed_time(e) for b, e in zip(begin, end, strict=True)]
    return statistics.median(times)


def relative_error(out, a, b):
    """Frobenius norm of the error over that of the float64 product, on at most 512 rows."""
    rows = torch.randperm(a.shape[0], device=a.device)[:512]
    exact = a[rows].double() @ b.double()
    return ((out[rows].double() - exact).norm() / exact.norm()).item()


def compare(fn, sizes, dtype, transposed_b, timers):
    rows = []
    for m, n, k in sizes:
        a, b = operands(m, n, k, dtype, transposed_b)
        for _ in range(3):
            out = fn(a, b)
        error = relative_error(out, a, b)
        for _ in range(20):
            torch.matmul(a, b)
        row = dict(m=m, n=n, k=k, error=error)
        theirs_fn, ours_fn = partial(torch.matmul, a, b), partial(fn, a, b)
        for name, timer in timers.items():
            before, ours, after = timer(theirs_fn), timer(ours_fn), timer(theirs_fn)
            theirs = (before + after) / 2
            row[name] = theirs / ours
            row[name + "_tflops"] = 2 * m * n * k / ours * 1e-9
            row[name + "_torch_tflops"] = 2 * m * n * k / theirs * 1e-9
        rows.append(row)
        print(f"{m:6}x{n}x{k:<6} err {error:.1e}  " + "  ".join(
            f"{t}: x{row[t]:.3f} ({row[t + '_tflops']:.0f} against {row[t + '_torch_tflops']:.0f} TFLOPS)"
            for t in timers), flush=True)
    for name in timers:
        ratios = [r[name] for r in rows]
        print(f"{name}: geometric mean x{statistics.geometric_mean(ratios):.3f}, "
              f"least x{min(ratios):.3f}, ahead of torch at {sum(r >= 1 for r in ratios)} of {len(ratios)}")
    return rows


def launch_us(fn, calls=300, rounds=7):
    """Least host microseconds to enqueue one call."""
    for _ in range(50):
        fn()
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        best = min(best, (time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", help="FILE.py:FUNCTION")
    parser.add_argument("--sizes", default="seed", help="'seed', or a comma list of N or MxNxK")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--tf32", action="store_true", help="float32 in tf32, on both sides")
    parser.add_argument("--transposed-b", action="store_true", help="b is a contiguous tensor's transpose")
    parser.add_argument("--timers", default="bench,gpu")
    parser.add_argument("--launch", action="store_true")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    fn = load(args.target)
    dtype = getattr(torch, args.dtype)
    if args.launch:
        a, b = operands(256, 256, 256, dtype)
        ours, theirs = launch_us(lambda: fn(a, b)), launch_us(lambda: torch.matmul(a, b))
        print(f"host cost of a call: {ours:.1f} us, torch.matmul's {theirs:.1f} us: x{theirs / ours:.2f}")
    if args.first:
        for m, n, k in [(1024, 1024, 1024), (1000, 1000, 1000), (4096, 4096, 4096), (4096, 4000, 4096)]:
            a, b = operands(m, n, k, dtype)
            torch.cuda.synchronize()
            start = time.perf_counter()
            fn(a, b)
            torch.cuda.synchronize()
            print(f"first call at {m}x{n}x{k}: {time.perf_counter() - start:.2f} s")
    if not (args.launch or args.first):
        timers = {t: dict(bench=bench_ms, gpu=gpu_ms)[t] for t in args.timers.split(",")}
        rows = compare(fn, parse_sizes(args.sizes), dtype, args.transposed_b, timers)
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
