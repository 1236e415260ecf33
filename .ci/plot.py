"""Plot squares that measure.py timed: .ci/plot.py results/CARD/measure_float16.json makes a .png of them."""
import json
import pathlib
import sys

import matplotlib.pyplot as plt

path = pathlib.Path(sys.argv[1])
rows = json.loads(path.read_text())
n = [row["n"] for row in rows]
figure, (rate, ratio) = plt.subplots(2, 1, figsize=(8, 7), sharex=True, constrained_layout=True)
for timer, style in ("gpu", "-"), ("bench", ":"):
    rate.plot(n, [row[f"{timer}_torch_tflops"] for row in rows], f"C0{style}", label=f"torch.matmul, {timer}")
    rate.plot(n, [row[f"{timer}_tflops"] for row in rows], f"C1{style}", label=f"matmul, {timer}")
    ratio.plot(n, [row[timer] for row in rows], f"C1{style}", label=timer)
ratio.axhline(1, color="C0")
rate.set(ylabel="TFLOPS", xscale="log", title=path.stem)
ratio.set(ylabel="time of torch.matmul / time of matmul", xlabel="M = N = K")
ratio.set_xticks([256, 512, 1024, 2048, 4096, 8192], ["256", "512", "1024", "2048", "4096", "8192"])
ratio.minorticks_off()
for axes in rate, ratio:
    axes.legend()
    axes.grid(alpha=0.3)
figure.savefig(path.with_suffix(".png"), dpi=120)
