"""What other tiles would bring 04's kernel: some 170 by TMA at 32 squares, on a GPU.

GPU time by measure.py's timer, float16, b as it lies and transposed: all tiles roughly, then the eight
fastest and the tuner's choice in full, between two of torch.matmul. Prints at each size the tuner's ratio and
the three best, last geometric means: of the tuner's choice, and of the best that was timed, the tuner's
included. --json FILE keeps them.
"""
import argparse
import concurrent.futures
import contextlib
import itertools
import json
import pathlib
import statistics
from functools import partial

import measure
import torch
import triton
from scripts import MODULES
from triton.runtime.errors import OutOfResources

GROUPED = MODULES["04"]
SHARED = 227 * 1024  # bytes that a program may have on Hopper


def tiles():
    """Configs: sides, steps along K and stages from lists, where they fit a program, and 04's own by TMA."""
    sides = itertools.product(((64, 1), (128, 1), (256, 1), (64, 3)), (32, 64, 128, 256))
    steps = 64, 128, 256, 512
    for ((m, pieces), n), step, stages, warps in itertools.product(sides, steps, (3, 4, 6), (4, 8)):
        tile = m * pieces * n
        values = tile // (32 * warps)  # float32 sums that a thread holds
        if 48 * 1024 <= (m * pieces + n) * step * stages <= SHARED and 16 <= values <= 192:
            for persistent in (False, True)[:1 + (tile >= 128 * 128)]:
                row = m, pieces, n, step, 8, True, persistent
                if warps == 4 or tile >= 128 * 128:
                    yield triton.Config(dict(zip(GROUPED.FIELDS, row, strict=True)), warps, stages)
    yield from (config for config in GROUPED.CONFIGS if config.kwargs["TMA"])


def short(config):
    meta = config.kwargs
    return (f"{meta['BLOCK_M'] * meta['PIECES']}x{meta['BLOCK_N']}, {meta['BYTES_K']} bytes, "
            f"group {meta['GROUP_M']}, {config.num_stages} stages, {config.num_warps} warps"
            + ", persistent" * meta["PERSISTENT"])


def planned(a, b):
    """{name: product of a and b} for all tiles that compile."""
    def plan(config):
        with contextlib.suppress(OutOfResources):
            return GROUPED.plan(a, b, "ieee", config)

    configs = {short(config): config for config in tiles()}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return {name: launch for name, launch in zip(configs, pool.map(plan, configs.values()), strict=True)
                if launch}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="seed", help="as measure.py's")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    rows = []
    for transposed, size in itertools.product((False, True), measure.parse_sizes(arguments.sizes)):
        a, b = measure.operands(*size, torch.float16, transposed)
        launches = {name: partial(launch, a, b) for name, launch in planned(a, b).items()}
        rough = {name: measure.gpu_ms(launch, launches=4, replays=1) for name, launch in launches.items()}
        before = measure.gpu_ms(partial(torch.matmul, a, b))
        tuned = measure.gpu_ms(partial(GROUPED.matmul, a, b))
        ms = {name: measure.gpu_ms(launches[name]) for name in sorted(rough, key=rough.get)[:8]}
        torch_ms = (before + measure.gpu_ms(partial(torch.matmul, a, b))) / 2
        ratios = {name: torch_ms / ms[name] for name in sorted(ms, key=ms.get)}
        rows.append(dict(n=size[1], transposed=transposed, torch_us=1e3 * torch_ms, tiles=len(launches),
                         tuned=torch_ms / tuned, best=max(*ratios.values(), torch_ms / tuned), ratios=ratios))
        words = [f"{ratio:.3f} {name}" for name, ratio in list(ratios.items())[:3]]
        print(f"{'T' if transposed else 'N'} {size[1]:5} torch.matmul {1e3 * torch_ms:7.1f} us, tuned "
              f"{torch_ms / tuned:.3f}; of {len(launches)}: {'; '.join(words)}", flush=True)
    for transposed in False, True:
        for what in "tuned", "best":
            ratios = [row[what] for row in rows if row["transposed"] == transposed]
            print(f"{'transposed' if transposed else 'as it lies'}, {what}: geometric mean x"
                  f"{statistics.geometric_mean(ratios):.3f}, least x{min(ratios):.3f}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
