"""Figures of the scripts beside torch.matmul on a GPU: a JSON file in results/<card> for each task or set.

bench is triton.testing.do_bench, median: the host's time too where the GPU waits for it. gpu is the GPU's
time alone: events in a CUDA graph, L2 flushed ahead. A ratio is torch.matmul's time, the mean of one before
and one after, over the script's. C's memory is poisoned with NaN; error is the Frobenius norm's, against
float64. Tasks: sets, which are 04's, takes names of sets, else makes all; squares is the first of them.
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
from fuzz import DEVICE, PRODUCTS

grouped, MATMULS = sys.modules[PRODUCTS["04"].__module__], PRODUCTS | {"torch.matmul": torch.matmul}
SQUARES = ",".join(str(n) for n in [*range(256, 4097, 128), 8192])
FLOAT32 = "1024,2048,4096,8192x4096x6144"
THIN = ",".join(f"{M}x{NK}" for M in (1, 16, 64, 256) for NK in ("4096x4096", "14336x4096", "4096x14336"))
SETS = {  # sizes, dtype or float32's precision, whether b is a contiguous tensor's transpose
    "squares": (SQUARES, "float16", False), "bfloat16": (SQUARES, "bfloat16", False),
    "transposed": (SQUARES, "float16", True), "thin": (THIN, "float16", False),
    "ragged": ("1000,1023,1500,2047,3001,4095x4097x4099", "float16", False),
    "ieee": (FLOAT32, "ieee", False), "tf32": (FLOAT32, "tf32", False),
}
METRICS = {
    "ms": ("gpu__time_duration.sum", 1e-6), "DRAM GB": ("dram__bytes.sum", 1e-9),
    "L2 hits %": ("lts__t_sector_hit_rate.pct", 1),
}
WIDE = 8192, 6144, 4096
LAUNCHES = [(step, n) for n in (4096, 8192, 16384) for step in ("04 in rows", "04", "torch.matmul")]
flush = torch.empty(2**26, dtype=torch.int32, device=DEVICE)


def bench_ms(fn):
    return triton.testing.do_bench(fn, warmup=10, rep=50, return_mode="median")


def gpu_ms(fn, launches=12, replays=3):
    fn()
    torch.cuda.synchronize()
    event = partial(torch.cuda.Event, enable_timing=True, external=True)
    begin, end = ([event() for _ in range(launches)] for _ in "be")
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for i in range(launches):
            flush.zero_()
            begin[i].record()
            fn()
            end[i].record()
    for _ in range(replays):
        graph.replay()
        torch.cuda.synchronize()
        times += [b.elapsed_time(e) for b, e in zip(begin, end, strict=True)]
    return statistics.median(times)


def draw(what, M, N, K, transposed=False):
    torch.set_float32_matmul_precision("high" if what == "tf32" else "highest")
    dtype = getattr(torch, what, torch.float32)
    b = torch.randn(*((N, K) if transposed else (K, N)), device=DEVICE).to(dtype)
    return torch.randn(M, K, device=DEVICE).to(dtype), b.T if transposed else b


def compare(product, a, b, timers=(bench_ms, gpu_ms), **row):
    """A row of the error and of rates and ratios by each timer."""
    (M, K), N = a.shape, b.shape[1]
    for _ in range(3):
        torch.full((M, N), torch.nan, dtype=a.dtype, device=DEVICE)  # freed: C may lie there
        c = product(a, b)
    some = torch.randperm(M, device=DEVICE)[:512]
    exact = a[some].double() @ b.double()
    row |= dict(m=M, n=N, k=K, error=((c[some].double() - exact).norm() / exact.norm()).item())
    for _ in range(20):
        torch.matmul(a, b)
    for timer in timers:
        before, ours, after = (timer(partial(f, a, b)) for f in (torch.matmul, product, torch.matmul))
        name, theirs = timer.__name__[:-3], (before + after) / 2
        rates = {"_tflops": 2 * M * N * K / ours * 1e-9, "_torch_tflops": 2 * M * N * K / theirs * 1e-9}
        row |= {name: theirs / ours} | {name + what: rate for what, rate in rates.items()}
    print(*(f"{key} {x:.4g}" if isinstance(x, float) else x for key, x in row.items()), flush=True)
    return row


def one_set(sizes, what, transposed):
    for size in sizes.split(","):
        M, N, K = [int(n) for n in size.split("x") * (1 if "x" in size else 3)]
        yield compare(PRODUCTS["04"], *draw(what, M, N, K, transposed))


def row_order(a, b):
    """04 with its tuned config, but GROUP_M = 1."""
    grouped.plan(a, b)
    with patch.dict(grouped.tuned_kernel.best_config.kwargs, GROUP_M=1):
        return grouped.plan(a, b)


def ladder():
    sizes = 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192
    for what, size in [("float16", (n,) * 3) for n in sizes] + [("ieee", WIDE), ("tf32", WIDE)]:
        a, b = draw(what, *size)
        for step, product in PRODUCTS.items():
            if step > "01" or size[0] <= 4096 or what == "ieee":
                yield compare(product, a, b, [bench_ms], what=what, step=step)
        if size[2] == 4096:
            yield compare(PRODUCTS["03"], a, b.T.contiguous().T, [bench_ms], what=what, step="03 apart")
    for n in 4096, 8192, 16384:
        a, b = draw("float16", n, n, n)
        for what, product in ("rows", row_order(a, b)), ("groups", PRODUCTS["04"]):
            yield compare(product, a, b, what=what, step="04")


def host():
    """Microseconds to enqueue a call, the least of seven rounds, three times; seconds of first calls."""
    (a, b), us = draw("float16", 256, 256, 256), {name: [] for name in ("04", "02", "torch.matmul")}
    for name in [*us] * 3:
        call = partial(MATMULS[name], a, b)
        timeit.timeit(call, number=50)
        us[name].append(min(timeit.repeat(call, torch.cuda.synchronize, repeat=7, number=300)) / 300 * 1e6)
    for name, times in us.items():
        yield {"µs to enqueue a call": name, "least": min(times)} | dict(zip("123", times, strict=True))
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TRITON_CACHE_DIR=folder):
        for state in "nothing compiled", "compiled, not tuned", "compiled and tuned":
            for path in pathlib.Path(folder).rglob("*.autotune.json") if "not" in state else []:
                path.unlink()
            said = subprocess.check_output([sys.executable, __file__, "first"], text=True)
            yield {"seconds of a first call": state} | json.loads(said.splitlines()[-1])


def first():
    seconds, wait = {}, torch.cuda.synchronize
    for size in (1024, 1024, 1024), (1000, 1000, 1000), (4096, 4096, 4096), (4096, 4000, 4096):
        call = partial(PRODUCTS["04"], *draw("float16", *size))
        seconds["x".join(map(str, size))] = timeit.timeit(lambda call=call: (call(), wait()), wait, number=1)
    print(json.dumps(seconds))


def launches():
    """What counters profiles: each case once to warm up and tune, then once more."""
    for step, n in LAUNCHES:
        a, b = draw("float16", n, n, n)
        product = row_order(a, b) if "rows" in step else MATMULS[step]
        product(a, b)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        product(a, b)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def counters():
    """One launch of each product's own kernel by Nsight Compute, without copies and transposes."""
    command = "ncu --clock-control none --profile-from-start off --csv --page raw --print-units base".split()
    command += ["--metrics", ",".join(metric for metric, _ in METRICS.values())]
    command += ["-k", "regex:matmul_kernel|gemm|nvjet|cutlass"]
    lines = subprocess.check_output([*command, sys.executable, __file__, "launches"], text=True).splitlines()
    found = [row for row in csv.DictReader(line for line in lines if line[:1] == '"') if row["ID"]]
    assert len(found) == len(LAUNCHES), [row["Kernel Name"] for row in found]
    for (step, n), row in zip(LAUNCHES, found, strict=True):
        values = {name: float(row[x].replace(",", "")) * scale for name, (x, scale) in METRICS.items()}
        values["least GB"] = 6 * n * n * 1e-9
        yield dict(step=step, what="float16", m=n, n=n, k=n, kernel=row["Kernel Name"]) | values


def rivals():
    """What torch.compile chooses of its own Triton kernels."""
    templates = torch.compile(torch.matmul, dynamic=False, options={
        "max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON", "triton.cudagraphs": False})
    for n in 512, 1024, 2048, 4096, 8192:
        a, b = draw("float16", n, n, n)
        for name, product in ("04", PRODUCTS["04"]), ("templates", templates):
            yield compare(product, a, b, step=name)


def keep(name, rows, what="float16"):
    card, root = torch.cuda.get_device_name(), pathlib.Path(__file__).parents[1]
    about = dict(
        card=card, torch=torch.__version__, triton=triton.__version__,
        dtype=str(getattr(torch, what, torch.float32))[6:],
        driver=" ".join(re.findall(r"Driver Version: ([\d.]+)", subprocess.getoutput("nvidia-smi"))),
        date=time.strftime("%Y-%m-%d"), commit=os.environ.get("COMMIT") or subprocess.getoutput(
            f"git -C {root} rev-parse --short HEAD 2>/dev/null"),
        method=" ".join(__doc__.split("\n\n")[1].split("Tasks:")[0].split()),
        command=re.sub(r" --out[ =]\S+", "", " ".join(["python .ci/measure.py", *sys.argv[1:]])))
    folder = pathlib.Path(arguments.out or root / "results" / card.lower().replace(" ", "-"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(about | {"rows": [*rows]}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("task", choices="squares sets ladder host counters rivals first launches".split())
    parser.add_argument("names", nargs="*", help=", ".join(SETS))
    parser.add_argument("--sizes", help="N or MxNxK, commas between, in place of the set's own")
    parser.add_argument("--name", help="of the JSON file, if not the task's or the set's")
    parser.add_argument("--out", help="folder, if not the card's in results")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.task in ("first", "launches"):
        globals()[arguments.task]()
    elif arguments.task in ("squares", "sets"):
        for name in arguments.names or {"squares": ["squares"], "sets": SETS}[arguments.task]:
            sizes, *kind = SETS[name]
            keep(arguments.name or name, one_set(arguments.sizes or sizes, *kind), kind[0])
    else:
        keep(arguments.name or arguments.task, globals()[arguments.task]())
