"""What each kernel asks of memory and tensor cores: one launch of each, by Nsight Compute, on a GPU.

    .ci/counters.py --json results/CARD/counters.json    runs itself under ncu and prints a table
Beside the DRAM bytes stands the least that any kernel must move: A and B read once, C written once.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import triton
from ladder import draw, grouped_by
from scripts import PRODUCTS

METRICS = {
    "ms": ("gpu__time_duration.sum", 1e-6),
    "DRAM GB": ("dram__bytes.sum", 1e-9),
    "DRAM %": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "L2 hit %": ("lts__t_sector_hit_rate.pct", 1),
    "SM %": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "tensor %": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
    "bank conflicts M": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1e-6),
    "wavefronts M": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1e-6),
}
CUBE, WIDE = (4096, 4096, 4096), (8192, 6144, 4096)
CASES = [
    *[(step, "float16", CUBE) for step in ("01", "02", "03", "torch")],
    *[(step, what, WIDE) for what in ("ieee", "tf32") for step in ("02", "03", "04", "torch")],
    *[(step, "float16", (n, n, n)) for n in (4096, 8192, 16384)
      for step in ("04 row order", "04 tuned order", "torch")],
]


def product_of(step, a, b):
    if step.startswith("04 "):
        return grouped_by(a, b, 1 if "row" in step else None)[0]
    return torch.matmul if step == "torch" else PRODUCTS[step]


def launch_cases():
    """Each case once to warm up (and tune), once between the profiler's start and stop."""
    for step, what, size in CASES:
        torch.set_float32_matmul_precision("high" if what == "tf32" else "highest")
        a, b = draw(*size, torch.float16 if what == "float16" else torch.float32)
        product = product_of(step, a, b)
        product(a, b)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        product(a, b)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def profile():
    """One row a case: the product's own kernel, without copies and transposes that go ahead of it."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "ncu.csv")
        subprocess.run(
            ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw",
             "--print-units", "base", "--log-file", log,
             "--metrics", ",".join(metric for metric, _ in METRICS.values()),
             "-k", "regex:matmul_kernel|block_kernel|naive_kernel|gemm|nvjet|cutlass",
             sys.executable, __file__, "--launch"], check=True)
        lines = [line for line in log.read_text().splitlines() if line.startswith('"')]
    launches = [row for row in csv.DictReader(lines) if row["ID"]]
    if len(launches) != len(CASES):
        names = [launch["Kernel Name"] for launch in launches]
        sys.exit(f"{len(launches)} kernels for {len(CASES)} cases: {names}")
    for (step, what, (M, N, K)), launch in zip(CASES, launches, strict=True):
        row = dict(step=step, what=what, size=f"{M}x{N}x{K}", kernel=launch["Kernel Name"])
        for name, (metric, scale) in METRICS.items():
            row[name] = float(launch[metric].replace(",", "")) * scale
        row["least GB"] = (M * K + K * N + M * N) * (2 if what == "float16" else 4) * 1e-9
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--launch", action="store_true", help="what is profiled: launch the cases")
    arguments = parser.parse_args()
    if arguments.launch:
        launch_cases()
        return
    rows = list(profile())
    columns = ["step", "what", "size", *METRICS, "least GB"]
    print(" | ".join(columns))
    for row in rows:
        print(" | ".join(f"{row[c]:.4g}" if isinstance(row[c], float) else row[c] for c in columns))
    if arguments.json:
        card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
        pathlib.Path(arguments.json).write_text(json.dumps(dict(card=card, rows=rows), indent=1))


if __name__ == "__main__":
    main()
