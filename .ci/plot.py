"""Draw what was measured on a card: .ci/plot.py results/CARD, where the JSON files are and the pictures go.

squares.png: 04 and torch.matmul over the squares; traffic.png: DRAM bytes by the order of tiles; steps.png:
steps 2 and 3 in each precision.
"""
import json
import pathlib
import sys

import matplotlib.pyplot as plt

folder = pathlib.Path(sys.argv[1])
TYPES, STEPS = ("ieee", "tf32"), ("02", "03")


def rows_of(name):
    return json.loads((folder / name).read_text())


def squares():
    rows, ladder = rows_of("measure_float16.json"), rows_of("ladder.json")["rows"]
    n = [row["n"] for row in rows]
    figure, (rate, ratio) = plt.subplots(2, 1, figsize=(8, 7), sharex=True, constrained_layout=True)
    for timer, style in ("gpu", "-"), ("bench", ":"):
        theirs = [row[f"{timer}_torch_tflops"] for row in rows]
        rate.plot(n, theirs, f"C0{style}", label=f"torch.matmul, {timer}")
        rate.plot(n, [row[f"{timer}_tflops"] for row in rows], f"C1{style}", label=f"04, {timer}")
        ratio.plot(n, [row[timer] for row in rows], f"C1{style}", label=timer)
    ceiling = max(row["torch_tflops"] for row in ladder if row["size"].startswith("16384"))
    rate.axhline(ceiling, color="0.5", linestyle="--", label="torch.matmul at 16384, do_bench")
    ratio.axhline(1, color="C0")
    rate.set(ylabel="TFLOPS", xscale="log", title="M = N = K, float16")
    ratio.set(ylabel="time of torch.matmul / time of 04", xlabel="M = N = K")
    ratio.set_xticks([256, 512, 1024, 2048, 4096, 8192], ["256", "512", "1024", "2048", "4096", "8192"])
    ratio.minorticks_off()
    for axes in rate, ratio:
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(folder / "squares.png", dpi=120)


def bars(axes, groups, series, label):
    """Bars of series {name: a value for each group}, labelled with their values."""
    for i, (name, values) in enumerate(series.items()):
        places = [group + (i - (len(series) - 1) / 2) * 0.8 / len(series) for group in range(len(groups))]
        drawn = axes.bar(places, values, 0.8 / len(series), label=name)
        labels = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values]
        axes.bar_label(drawn, labels, fontsize=8)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(label)
    axes.legend(fontsize=8)


def traffic():
    rows = [row for row in rows_of("counters.json")["rows"] if row["step"].endswith("order")]
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    figure, (dram, hits) = plt.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)

    def column(step, name):
        return [row[name] for size in sizes for row in rows if (row["size"], row["step"]) == (size, step)]

    orders = {"GROUP_M = 1": "04 row order", "tuned GROUP_M": "04 tuned order"}
    gigabytes = {name: column(step, "DRAM GB") for name, step in orders.items()}
    gigabytes["least possible"] = column("04 row order", "least GB")
    names = [size.split("x")[0] for size in sizes]
    bars(dram, names, gigabytes, "GB to and from DRAM")
    dram.set_yscale("log")
    bars(hits, names, {name: column(step, "L2 hit %") for name, step in orders.items()}, "L2 hits, %")
    hits.set_ylim(0, 100)
    hits.legend(fontsize=8, loc="upper center", ncols=2)
    figure.savefig(folder / "traffic.png", dpi=120)


def steps():
    rows = [row for row in rows_of("counters.json")["rows"] if row["what"] in TYPES]
    labels = {"ms": "ms", "bank conflicts M": "bank conflicts, millions", "DRAM %": "DRAM, % of peak"}
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), constrained_layout=True)
    for axes, (name, label) in zip(panels, labels.items(), strict=True):
        series = {f"step {step[1]}": [row[name] for row in rows if row["step"] == step] for step in STEPS}
        bars(axes, TYPES, series, label)
        if name != "DRAM %":
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter("")
            axes.yaxis.set_major_formatter("{x:,.0f}")
    figure.suptitle("float32, 8192 x 6144 x 4096, the product's kernel alone")
    figure.savefig(folder / "steps.png", dpi=120)


squares()
traffic()
steps()
