"""Figures of the scripts beside torch.matmul on a GPU: a JSON file in results/<card> for each task or set.

bench is triton.testing.do_bench, median: the host's time too where the GPU waits for it. gpu is the GPU's
time alone: events in a CUDA graph, L2 flushed ahead. A ratio is torch.matmul's time, the mean of one before
and one after, over the script's. C's memory is poisoned with NaN; error is the Frobenius norm's, against
float64. Tasks: squares takes the options; sets, which are 04's, takes names of sets, else makes all.
"""
import argparse
import csv
import datetime
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
from fuzz import DEVICE, PRODUCTS

ROOT = pathlib.Path(__file__).parents[1]
grouped, MATMULS = sys.modules[PRODUCTS["04"].__module__], PRODUCTS | {"torch.matmul": torch.matmul}
SQUARES = ",".join(str(n) for n in [*range(256, 4097, 128), 8192])
FLOAT32 = "1024,2048,4096,8192x4096x6144"
THIN = ",".join(f"{M}x{NK}" for M in (1, 16, 64, 256) for NK in ("4096x4096", "14336x4096", "4096x14336"))
SETS = {  # sizes, dtype, precision, whether b is a contiguous tensor's transpose
    "squares": (SQUARES, "float16", "highest", False), "bfloat16": (SQUARES, "bfloat16", "highest", False),
    "transposed": (SQUARES, "float16", "highest", True),
    "ragged": ("1000,1023,1500,2047,3001,4095x4097x4099", "float16", "highest", False),
    "thin": (THIN, "float16", "highest", False),
    "ieee": (FLOAT32, "float32", "highest", False), "tf32": (FLOAT32, "float32", "high", False),
}
METRICS = {
    "ms": ("gpu__time_duration.sum", 1e-6), "DRAM GB": ("dram__bytes.sum", 1e-9),
    "L2 hits %": ("lts__t_sector_hit_rate.pct", 1),
    "bank conflicts M": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1e-6),
    "DRAM %": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "SM %": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "tensor %": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
}
WIDE = 8192, 6144, 4096
LAUNCHES = [(step, "float16", (4096,) * 3) for step in ("01", "02", "03")]
LAUNCHES += [(step, what, WIDE) for what in ("ieee", "tf32") for step in ("02", "03", "04", "torch.matmul")]
LAUNCHES += [
    (step, "float16", (n,) * 3) for n in (4096, 8192, 16384) for step in ("04 in rows", "04", "torch.matmul")]
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


def draw(M, N, K, dtype, transposed=False):
    b = torch.randn(*((N, K) if transposed else (K, N)), device="cuda").to(dtype)
    return torch.randn(M, K, device="cuda").to(dtype), b.T if transposed else b


def compare(product, a, b, timers=(bench_ms, gpu_ms), **row):
    """A row of the error and of rates and ratios by each timer."""
    (M, K), N = a.shape, b.shape[1]
    for _ in range(3):
        torch.full((M, N), torch.nan, dtype=a.dtype, device="cuda")  # freed: C may lie there
        c = product(a, b)
    some = torch.randperm(M, device="cuda")[:512]
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


def output(*command, **env):
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | env, check=True).stdout.strip()


def one_set(script, sizes, dtype, precision, transposed):
    torch.set_float32_matmul_precision(precision)
    for size in sizes.split(","):
        M, N, K = [int(n) for n in size.split("x") * (1 if "x" in size else 3)]
        yield compare(PRODUCTS[script], *draw(M, N, K, getattr(torch, dtype), transposed))


def row_order(a, b):
    """04 with its tuned config, but GROUP_M = 1."""
    grouped.PLANS.clear()
    grouped.matmul(a, b)
    with patch.dict(grouped.tuned_kernel.best_config.kwargs, GROUP_M=1):
        grouped.PLANS.clear()
        grouped.matmul(a, b)
        return grouped.PLANS.popitem()[1]


def ladder():
    sizes = 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192
    for what, precision, size in [("float16", "highest", (n,) * 3) for n in sizes] + [
            ("ieee", "highest", WIDE), ("tf32", "high", WIDE)]:
        torch.set_float32_matmul_precision(precision)
        a, b = draw(*size, torch.float16 if what == "float16" else torch.float32)
        for step, product in PRODUCTS.items():
            if step > "01" or size[0] <= 4096 or what == "ieee":
                yield compare(product, a, b, [bench_ms], what=what, step=step)
        if size[2] == 4096:
            yield compare(PRODUCTS["03"], a, b.T.contiguous().T, [bench_ms], what=what, step="03 apart")
    for n in 4096, 8192, 16384:
        a, b = draw(n, n, n, torch.float16)
        for what, product in ("rows", row_order(a, b)), ("groups", PRODUCTS["04"]):
            yield compare(product, a, b, what=what, step="04")


def host():
    """Microseconds to enqueue a call, the least of seven rounds, three times; seconds of first calls."""
    (a, b), us = draw(256, 256, 256, torch.float16), {name: [] for name in ("04", "02", "torch.matmul")}
    for name in [*us] * 3:
        call = partial(MATMULS[name], a, b)
        timeit.timeit(call, number=50)
        us[name].append(min(timeit.repeat(call, torch.cuda.synchronize, repeat=7, number=300)) / 300 * 1e6)
    for name, times in us.items():
        yield {"µs to enqueue a call": name, "least": min(times)} | dict(zip("123", times, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        for state in "nothing compiled", "compiled, not tuned", "compiled and tuned":
            for path in pathlib.Path(folder).rglob("*.autotune.json") if "not" in state else []:
                path.unlink()
            said = output(sys.executable, __file__, "first", TRITON_CACHE_DIR=folder)
            yield {"seconds of a first call": state} | json.loads(said.splitlines()[-1])


def first():
    seconds = {}
    for size in (1024, 1024, 1024), (1000, 1000, 1000), (4096, 4096, 4096), (4096, 4000, 4096):
        a, b = draw(*size, torch.float16)
        torch.cuda.synchronize()
        start = time.perf_counter()
        PRODUCTS["04"](a, b)
        torch.cuda.synchronize()
        seconds["x".join(map(str, size))] = time.perf_counter() - start
    print(json.dumps(seconds))


def launches():
    """What counters profiles: each case once to warm up and tune, then once more."""
    for step, what, size in LAUNCHES:
        torch.set_float32_matmul_precision("high" if what == "tf32" else "highest")
        a, b = draw(*size, torch.float16 if what == "float16" else torch.float32)
        product = row_order(a, b) if "rows" in step else MATMULS[step]
        product(a, b)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        product(a, b)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def counters():
    """One launch of each product's own kernel by Nsight Compute, without copies and transposes."""
    options = "--clock-control none --profile-from-start off --csv --page raw --print-units base"
    options = [*options.split(), "--metrics", ",".join(metric for metric, _ in METRICS.values()), "-k",
               "regex:(naive|block|coalesced|matmul)_kernel|gemm|nvjet|cutlass"]
    lines = output("ncu", *options, sys.executable, __file__, "launches").splitlines()
    found = [row for row in csv.DictReader(line for line in lines if line[:1] == '"') if row["ID"]]
    assert len(found) == len(LAUNCHES), [row["Kernel Name"] for row in found]
    for (step, what, (M, N, K)), row in zip(LAUNCHES, found, strict=True):
        values = {name: float(row[x].replace(",", "")) * scale for name, (x, scale) in METRICS.items()}
        values["least GB"] = (M * K + K * N + M * N) * (2 if what == "float16" else 4) * 1e-9
        yield dict(step=step, what=what, m=M, n=N, k=K, kernel=row["Kernel Name"]) | values


TUTORIAL = [triton.Config(dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8), warps, stages)
            for m, n, k, stages, warps in [
                (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4),
                (64, 128, 32, 4, 4), (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2)]]


@triton.autotune(TUTORIAL, key=["M", "N", "K"])
@triton.jit
def tutorial_kernel(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):
    pid, width = tl.program_id(0), GROUP_M * tl.cdiv(N, BLOCK_N)
    height = min(tl.cdiv(M, BLOCK_M) - pid // width * GROUP_M, GROUP_M)
    rows = (pid // width * GROUP_M + pid % width % height) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns, steps = pid % width // height * BLOCK_N + tl.arange(0, BLOCK_N)[None, :], tl.arange(0, BLOCK_K)
    a += rows % M * stride_am + steps[None, :] * stride_ak
    b += steps[:, None] * stride_bk + columns % N * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x, y = tl.load(a, steps[None, :] < K - k, 0.0), tl.load(b, steps[:, None] < K - k, 0.0)
        acc, a, b = tl.dot(x, y, acc), a + BLOCK_K * stride_ak, b + BLOCK_K * stride_bk
    tl.store(c + rows * N + columns, acc.to(c.dtype.element_ty), (rows < M) & (columns < N))


def tutorial(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, device=a.device, dtype=a.dtype)
    tutorial_kernel[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)](
        a, b, c, M, N, K, *a.stride(), *b.stride())
    return c


def rivals():
    """The design of Triton's tutorial written anew; what torch.compile chooses of its own Triton kernels."""
    templates = torch.compile(torch.matmul, dynamic=False, options={
        "max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON", "triton.cudagraphs": False})
    for n in 512, 1024, 2048, 4096, 8192:
        a, b = draw(n, n, n, torch.float16)
        for name, product in ("04", PRODUCTS["04"]), ("tutorial", tutorial), ("templates", templates):
            yield compare(product, a, b, step=name)


def keep(name, rows, dtype="float16"):
    start, card = time.monotonic(), torch.cuda.get_device_name()
    about = dict(
        card=card, torch=torch.__version__, triton=triton.__version__, dtype=dtype,
        driver=" ".join(re.findall(r"Driver Version: ([\d.]+)", subprocess.getoutput("nvidia-smi"))),
        date=f"{datetime.date.today()}",
        commit=arguments.commit, method=" ".join(__doc__.split("\n\n")[1].split("Tasks:")[0].split()),
        command=re.sub(r" --(out|commit)[ =]\S+", "", " ".join(["python .ci/measure.py", *sys.argv[1:]])))
    folder = pathlib.Path(arguments.out or ROOT / "results" / card.lower().replace(" ", "-"))
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(about | {"rows": [*rows]}, indent=1)
    (folder / f"{name}.json").write_text(text + "\n")
    print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    tasks = {function.__name__: function for function in (ladder, host, counters, rivals)}
    parser.add_argument("task", choices=["squares", "sets", *tasks, "first", "launches"])
    parser.add_argument("names", nargs="*", help=", ".join(SETS))
    parser.add_argument("--script", default="04", choices=PRODUCTS)
    parser.add_argument("--sizes", default=SQUARES, help="N or MxNxK, commas between")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--precision", default="highest", help="of float32: high is tf32")
    parser.add_argument("--transposed-b", action="store_true")
    parser.add_argument("--name", help="of the JSON file, if not the task's")
    parser.add_argument("--out", help="folder, if not the card's in results")
    parser.add_argument("--commit", default=os.environ.get("COMMIT") or subprocess.getoutput(
        f"git -C {ROOT} rev-parse --short HEAD 2>/dev/null"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.task in ("first", "launches"):
        globals()[arguments.task]()
    elif arguments.task == "squares":
        kind = arguments.sizes, arguments.dtype, arguments.precision, arguments.transposed_b
        keep(arguments.name or "squares", one_set(arguments.script, *kind), arguments.dtype)
    elif arguments.task == "sets":
        for name in arguments.names or SETS:
            keep(name, one_set(arguments.script, *SETS[name]), SETS[name][1])
    else:
        keep(arguments.name or arguments.task, tasks[arguments.task]())
