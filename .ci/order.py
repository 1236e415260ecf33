"""Draw results/order.png: what nine programs in flight read on 9 x 9 tiles, in row order and in groups.

The order is asked of 04's own kernel; the numbers in the picture are its program ids.
"""
import pathlib

import matplotlib.pyplot as plt
import scripts
import torch

GRID, FLIGHT = 9, 9
grouped = scripts.MODULES["04"]
figure, panels = plt.subplots(1, 2, figsize=(11, 5.6), constrained_layout=True)
for axes, GROUP_M in zip(panels, (1, 3), strict=True):
    pids = torch.empty(GRID, GRID, dtype=torch.int32, device=scripts.DEVICE)
    grouped.order_kernel[(GRID * GRID,)](pids, GRID, GRID, GROUP_M)
    in_flight = (pids < FLIGHT).cpu()
    rows, columns = in_flight.any(dim=1), in_flight.any(dim=0)
    tiles = GRID * int(rows.sum() + columns.sum())

    def square(x, y, read, color, axes=axes):
        axes.add_patch(plt.Rectangle((x, y), 1, 1, facecolor=color if read else "none", edgecolor="0.7"))

    for m in range(GRID):
        square(-2, m, rows[m], "C0")
        square(m, -2, columns[m], "C2")
        for n in range(GRID):
            square(n, m, in_flight[m, n], "C1")
            axes.text(n + 0.5, m + 0.5, int(pids[m, n]), ha="center", va="center", fontsize=9)
    axes.text(-1.5, GRID + 0.3, "rows of A", ha="center", va="top", color="C0")
    axes.text(GRID + 0.2, -1.5, "columns of B", va="center", color="C2")
    axes.set(xlim=(-2.8, GRID + 2.6), ylim=(GRID + 1, -2.3), aspect="equal")
    order = "row order" if GROUP_M == 1 else f"GROUP_M = {GROUP_M}"
    axes.set_title(f"{order}: programs 0 to {FLIGHT - 1} read {tiles} tiles", fontsize=11)
    axes.axis("off")
path = pathlib.Path(__file__).parents[1] / "results" / "order.png"
figure.savefig(path, dpi=120)
print(path)
