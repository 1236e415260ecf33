"""README.md and pictures from the JSON files of a card: python .ci/report.py [results/<card>]"""
import argparse
import itertools
import json
import pathlib
import statistics
import sys

from fuzz import MODULES

TITLES = {  # in this order; others, such as another Triton's, last, under their own names
    "ladder": "The ladder", "squares": "Squares, float16", "bfloat16": "Squares, bfloat16",
    "transposed": "Squares, float16, b transposed", "ragged": "Ragged sizes, float16",
    "thin": "Thin sizes, float16", "ieee": "float32, ieee", "tf32": "float32, tf32", "host": "The host",
    "counters": "By the profiler", "rivals": "Rivals"}
HEADS = {"tflops": "TFLOPS", "torch_tflops": "torch.matmul"}  # of bench_tflops, gpu_tflops and so on
WHERE = "{card}, driver {driver}, torch {torch}, Triton {triton}, {date}, commit {commit}:\n\n`{command}`"


def figure(key, x):
    if not isinstance(x, float):
        return str(x)
    if key in ("bench", "gpu"):  # 0.902 (90 %)
        return f"{x:.3f} ({100 * x:.0f} %)" if x > 0.1 else f"{100 * x:.2g} %"
    return f"{x:.1e}" if key == "error" else f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def table(head, rows):
    rows = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def size(row):
    return str(row["n"]) if row["m"] == row["n"] == row["k"] else "{m} x {n} x {k}".format_map(row)


def tables(rows):
    """A table of each stretch of rows that have the same keys."""
    rows = [{"M x N x K": size(row)} | row if "m" in row else row for row in rows]
    for keys, same in itertools.groupby(rows, key=lambda row: [key for key in row if key not in "mnk"]):
        figures = [[figure(key, row[key]) for key in keys] for row in same]
        yield table([HEADS.get(key.partition("_")[2], key) for key in keys], figures)


def summary(files):
    """Of each set, each step and rival: the geometric mean, the least and the most of its ratios."""
    lines, found = [], [(x, row) for x in files for row in files[x]["rows"] if "bench" in row]
    kind = lambda name, row: (TITLES.get(name, name), *[row[x] for x in ("step", "what") if "step" in row])
    for title in dict.fromkeys(kind(*pair) for pair in found):
        rows = [pair[1] for pair in found if kind(*pair) == title]
        lines.append([" ".join(title), len(rows)])
        for timer in [x for x in ("bench", "gpu") if x in rows[0]]:
            ratios = [row[timer] for row in rows]
            figures = statistics.geometric_mean(ratios), min(ratios), max(ratios)
            lines[-1] += [f"{x:.3f}" for x in figures] + [size(rows[ratios.index(min(ratios))])]
    head = ["set", "sizes", "bench", "least", "most", "at", "gpu", "least", "most", "at"]
    return table(head, [line for line in lines if line[1] > 1])


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=pathlib.Path, nargs="?", default="results/nvidia-h200")
parser.add_argument("--check", action="store_true", help="draw nothing; 1 if the files give another page")
arguments = parser.parse_args()
files = {path.stem: json.loads(path.read_text()) for path in sorted(arguments.folder.glob("*.json"))}
files = {name: files[name] for name in [*TITLES, *files] if name in files}
cards = ", ".join(dict.fromkeys(about["card"] for about in files.values()))
parts = [f"# Measured on {cards}", "Written by `python .ci/report.py`.", "## Ratios to torch.matmul",
         "Geometric mean, least, most, and the least one's size.", summary(files)]
for name, about in files.items():
    parts += [f"## {TITLES.get(name, name)}", WHERE.format_map(about), *tables(about["rows"])]
    parts += ["![The ladder](climb.png)"] if name == "ladder" else []
parts += ["![Nine programs on 9 x 9 tiles](order.png)", "## Method"]
parts += dict.fromkeys(about["method"] for about in files.values())
text, readme = "\n\n".join(parts) + "\n", arguments.folder / "README.md"
if arguments.check:
    sys.exit(0 if readme.read_text() == text else f"{readme} is not what its files give")
readme.write_text(text)
import matplotlib.pyplot as plt  # noqa: E402, which the check does not need

picture, (axes, ratio) = plt.subplots(1, 2, figsize=(9, 3.2), constrained_layout=True)
rows = [row for row in files["ladder"]["rows"] if row["what"] == "float16"]
for step, key, style, label in [(x, "bench_tflops", ".-", x) for x in MODULES] + [
        ("04", "bench_torch_tflops", "k--", "torch.matmul")]:
    points = [(row["n"], row[key]) for row in rows if row["step"] == step]
    axes.plot(*zip(*points, strict=True), style, label=label)
ratio.plot(*zip(*[(row["n"], row["gpu"]) for row in files["squares"]["rows"]], strict=True), "C3.-")
ratio.axhline(1, color="k", linestyle="--")
axes.set(yscale="log", xlabel="M = N = K", ylabel="TFLOPS, do_bench", title="float16")
ratio.set(ylim=(0.5, 1.2), xlabel="M = N = K", title="04's speed / torch.matmul's, on the GPU alone")
axes.legend()
for panel in axes, ratio:
    panel.set_xscale("log", base=2)
    panel.set_xticks([256, 512, 1024, 2048, 4096, 8192], [256, 512, 1024, 2048, 4096, 8192])
    panel.grid(alpha=0.3)
picture.savefig(arguments.folder / "climb.png", dpi=160)

# Nine programs in flight on 9 x 9 tiles, asked of 04's tile_of; the numbers are program ids.
picture, panels = plt.subplots(1, 2, figsize=(8, 4), constrained_layout=True)
for axes, GROUP_M in zip(panels, (1, 3), strict=True):
    tiles = [MODULES["04"].tile_of.fn(pid, 9, 9, GROUP_M) for pid in range(81)]
    rows, columns = map(set, zip(*tiles[:9], strict=True))
    cells = [(n, m, "C1" if pid < 9 else "none", pid) for pid, (m, n) in enumerate(tiles)]
    cells += [(-2, m, "C0", "A") for m in rows] + [(n, -2, "C2", "B") for n in columns]
    for x, y, color, word in cells:
        axes.add_patch(plt.Rectangle((x, y), 1, 1, facecolor=color, edgecolor="0.7"))
        axes.text(x + 0.5, y + 0.5, word, ha="center", va="center", fontsize=9)
    axes.set(xlim=(-2.3, 9.3), ylim=(9.3, -2.3), aspect="equal")
    axes.set(title=f"GROUP_M = {GROUP_M}: programs 0 to 8 read {9 * len([*rows, *columns])} tiles")
    axes.axis("off")
picture.savefig(arguments.folder / "order.png", dpi=160)
