"""Figures of the scripts beside torch.matmul on a GPU: a JSON file in results/<card> for each set named.

bench is triton.testing.do_bench, median: the host's time too where the GPU waits for it. gpu is the GPU's
time alone: events in a CUDA graph, L2 flushed ahead. A ratio is torch.matmul's time, the mean of one before
and one after, over the script's. C's memory is poisoned with NaN; error is the Frobenius norm's, against
float64.
"""
import argparse
import csv
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from functools import partial
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from fuzz import MODULES, PRODUCTS

HERE = pathlib.Path(__file__).parent
grouped, tile_of, MATMULS = MODULES["04"], MODULES["04"].tile_of, PRODUCTS | {"torch.matmul": torch.matmul}
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "ieee": torch.float32, "tf32": torch.float32}
SQUARES, RAGGED = [*range(256, 4097, 128), 8192], [1000, 1023, 1500, 2047, 3001, (4095, 4097, 4099)]
THIN = [(M, *NK) for M in (1, 16, 64, 256) for NK in [(4096, 4096), (14336, 4096), (4096, 14336)]]
FLOAT32, WIDE = [1024, 2048, 4096, (8192, 4096, 6144)], (8192, 6144, 4096)
METRICS = {
    "ms": ("gpu__time_duration.sum", 1e-6), "DRAM GB": ("dram__bytes.sum", 1e-9),
    "bank conflicts M": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1e-6),
    "tensor %": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
}
LAUNCHES = [(step, "float16", (4096,) * 3) for step in ("01", "02", "03")]
LAUNCHES += [(step, what, WIDE) for what in ("ieee", "tf32") for step in ("02", "03", "04", "torch.matmul")]
LAUNCHES += [
    (step, "float16", (n,) * 3) for n in (4096, 8192, 16384) for step in ("04 in rows", "04", "torch.matmul")]


def bench_ms(fn):
    return triton.testing.do_bench(fn, warmup=10, rep=50, return_mode="median")


def gpu_ms(fn, launches=12, replays=3):
    fn()
    flush = torch.empty(2**26, dtype=torch.int32, device="cuda")
    event = partial(torch.cuda.Event, enable_timing=True, external=True)
    pairs, graph, times = [(event(), event()) for _ in range(launches)], torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for begin, end in pairs:
            flush.zero_()
            begin.record()
            fn()
            end.record()
    for _ in range(replays):
        graph.replay()
        torch.cuda.synchronize()
        times += [begin.elapsed_time(end) for begin, end in pairs]
    return statistics.median(times)


def draw(size, what="float16", transposed=False):
    """a and b of side N or of (M, N, K), with torch's float32 precision set; b perhaps a transpose."""
    torch.set_float32_matmul_precision("high" if what == "tf32" else "highest")
    M, N, K = size if isinstance(size, tuple) else (size,) * 3
    b = torch.randn(*((N, K) if transposed else (K, N)), device="cuda").to(DTYPES[what])
    return torch.randn(M, K, device="cuda").to(DTYPES[what]), b.T if transposed else b


def compare(product, size, what="float16", transposed=False, timers=(bench_ms, gpu_ms), **row):
    """A row of the error and of rates and ratios by each timer."""
    a, b = draw(size, what, transposed)
    (M, K), N = a.shape, b.shape[1]
    for _ in range(3):
        torch.full((M, N), torch.nan, dtype=a.dtype, device="cuda")  # freed: C may lie there
        c = product(a, b)
    some = torch.randperm(M, device="cuda")[:512]
    exact = a[some].double() @ b.double()
    row |= dict(what=what, m=M, n=N, k=K, error=((c[some].double() - exact).norm() / exact.norm()).item())
    assert row["error"] < 0.01, row  # nor NaN
    for _ in range(20):
        torch.matmul(a, b)
    for timer in timers:
        before, ours, after = (timer(partial(f, a, b)) for f in (torch.matmul, product, torch.matmul))
        name, theirs, work = timer.__name__[:-3], (before + after) / 2, 2 * M * N * K * 1e-9
        row |= {name: theirs / ours, f"{name}_tflops": work / ours, f"{name}_torch_tflops": work / theirs}
    print(*(f"{key} {x:.4g}" if isinstance(x, float) else x for key, x in row.items()), flush=True)
    return row


def ratios(sizes, *kind):
    for size in sizes:
        yield compare(PRODUCTS["04"], size, *kind)


def row_order(a, b):
    """04 with its tuned config, but GROUP_M = 1."""
    grouped.plan(a, b)
    with patch.dict(grouped.tuned_kernel.best_config.kwargs, GROUP_M=1):
        return grouped.plan(a, b)


def ladder():
    sizes = 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192
    for size, what in [(n, "float16") for n in sizes] + [(WIDE, "ieee"), (WIDE, "tf32")]:
        for step, product in PRODUCTS.items():
            if step > "01" or what == "ieee" or what == "float16" and size <= 4096:
                yield compare(product, size, what, timers=[bench_ms], step=step)
        if size in (4096, WIDE):
            yield compare(PRODUCTS["03"], size, what, True, [bench_ms], step="03 apart")
    for n in 4096, 8192, 16384:
        for order, product in ("rows", row_order(*draw(n))), ("groups", PRODUCTS["04"]):
            yield compare(product, n, step=f"04 in {order}")


def host():
    """Microseconds to enqueue a call, the least of seven rounds, in turn; seconds of first calls."""
    a, b = draw(256)
    for name in ["04", "02", "torch.matmul"] * 3:
        times = timeit.repeat(partial(MATMULS[name], a, b), torch.cuda.synchronize, repeat=8, number=300)
        yield {"µs to enqueue a call": name, "least": min(times[1:]) / 300 * 1e6}
    with tempfile.TemporaryDirectory() as folder:
        for state in "nothing compiled", "compiled, not tuned", "compiled and tuned":
            for path in pathlib.Path(folder).rglob("*.autotune.json") if "not" in state else []:
                path.unlink()
            said = subprocess.check_output([sys.executable, "-c", "import measure; measure.first()"],
                                           cwd=HERE, env=os.environ | {"TRITON_CACHE_DIR": folder})
            yield {"seconds of a first call": state} | json.loads(said)


def first():
    """In a process of its own."""
    def call(a, b):
        PRODUCTS["04"](a, b)
        torch.cuda.synchronize()

    print(json.dumps({"x".join(map(str, size)): timeit.timeit(
        partial(call, *draw(size)), torch.cuda.synchronize, number=1) for size in (
        (1024, 1024, 1024), (1000, 1000, 1000), (4096, 4096, 4096), (4096, 4000, 4096))}))


def launches():
    """In a process of its own: each case once to warm up and tune, then once more for the profiler."""
    for step, what, size in LAUNCHES:
        a, b = draw(size, what)
        product = row_order(a, b) if "rows" in step else MATMULS[step]
        product(a, b)
        torch.cuda.synchronize()
        with torch.cuda.profiler.profile():
            product(a, b)
            torch.cuda.synchronize()


def counters():
    """One launch of each product's own kernel by Nsight Compute, without copies and transposes."""
    options = "--clock-control none --profile-from-start off --csv --page raw --print-units base -k".split()
    options += ["regex:(naive|block|coalesced|matmul)_kernel|gemm|nvjet|cutlass", "--metrics",
                ",".join(metric for metric, _ in METRICS.values())]
    said = subprocess.check_output(
        ["ncu", *options, sys.executable, "-c", "import measure; measure.launches()"], cwd=HERE, text=True)
    found = [row for row in csv.DictReader(re.findall('^".*', said, re.MULTILINE)) if row["ID"]]
    for (step, what, (M, N, K)), row in zip(LAUNCHES, found, strict=True):
        values = {name: float(row[x].replace(",", "")) * scale for name, (x, scale) in METRICS.items()}
        values["least GB"] = (M * K + K * N + M * N) * DTYPES[what].itemsize * 1e-9
        yield dict(step=step, what=what, m=M, n=N, k=K, kernel=row["Kernel Name"]) | values


TUTORIAL = [  # BLOCK_M, BLOCK_N, BLOCK_K, stages, warps
    (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4), (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2)]


@triton.autotune([triton.Config(dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k), warps, stages)
                  for m, n, k, stages, warps in TUTORIAL], key=["M", "N", "K"])
@triton.jit
def tutorial_kernel(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    pid_m, pid_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), 8)
    m, k = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_K)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    a, b = a + m % M * K + k[None, :], b + k[:, None] * N + n % N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for left in range(K, 0, -BLOCK_K):
        acc = tl.dot(tl.load(a, k[None, :] < left, 0.0), tl.load(b, k[:, None] < left, 0.0), acc)
        a, b = a + BLOCK_K, b + BLOCK_K * N
    tl.store(c + m * N + n, acc.to(c.dtype.element_ty), (m < M) & (n < N))


def tutorial(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    tiles = lambda meta: triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"])
    tutorial_kernel[lambda meta: (tiles(meta),)](a, b, c, M, N, K)
    return c


def rivals():
    """The design of Triton's tutorial written anew; what torch.compile chooses of its own Triton kernels."""
    templates = torch.compile(torch.matmul, dynamic=False, options={
        "max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON", "triton.cudagraphs": False})
    for n in 512, 1024, 2048, 4096, 8192:
        for name, product in ("04", PRODUCTS["04"]), ("tutorial", tutorial), ("templates", templates):
            yield compare(product, n, step=name)


SETS = {
    "squares": partial(ratios, SQUARES), "bfloat16": partial(ratios, SQUARES, "bfloat16"),
    "transposed": partial(ratios, SQUARES, "float16", True), "ragged": partial(ratios, RAGGED),
    "thin": partial(ratios, THIN), "ieee": partial(ratios, FLOAT32, "ieee"),
    "tf32": partial(ratios, FLOAT32, "tf32"),
    "ladder": ladder, "host": host, "counters": counters, "rivals": rivals,
}
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sets", nargs="+", choices=SETS, help="counters wants Nsight Compute")
    parser.add_argument("--suffix", default="", help="of the files' names, such as -triton-3.9.0")
    parser.add_argument("--commit", default=subprocess.getoutput("git rev-parse --short HEAD"))
    arguments, card = parser.parse_args(), torch.cuda.get_device_name()
    folder = HERE.parent / "results" / card.lower().replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.sets:
        start, option = time.monotonic(), f" --suffix={arguments.suffix}" if arguments.suffix else ""
        about = dict(
            card=card, torch=torch.__version__, triton=triton.__version__, date=time.strftime("%F"),
            driver=subprocess.getoutput("nvidia-smi --query-gpu=driver_version --format=csv,noheader"),
            method=" ".join(__doc__.split("\n\n")[1].split()), commit=arguments.commit,
            command=f"python .ci/measure.py {name}{option}", rows=[*SETS[name]()])
        (folder / f"{name}{arguments.suffix}.json").write_text(json.dumps(about, indent=1) + "\n")
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
