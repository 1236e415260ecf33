"""Random sizes, dtypes and layouts through all four wrappers: each result is bitwise the float64 product.

Values from {-1, 0, 1} sum exactly. An operand lies in a storage that is NaN elsewhere, and a NaN tensor of
C's shape is freed ahead of each call. A case has one size: two pairs of operands that are laid out alike, and
one laid out otherwise. Half of 04's cases take a config at random, and half of these the copies that large
products get. The sign of a zero is not compared. One integer determines a case, on one kind of device; case
% 4 is its script.
"""
import argparse
import collections
import contextlib
import itertools
import random
import sys
import time
import unittest.mock

import scripts
import torch
from triton.runtime.errors import OutOfResources

EDGES = [tile + d for tile in (16, 32, 64, 128) for d in (-1, 0, 1)]
PRIMES = [n for n in range(2, 600) if all(n % d for d in range(2, n))]
SMALL = scripts.DEVICE == "cpu"  # the interpreter takes some 10 ms a tile


def draw_sizes(rng, number):
    if SMALL and number == "01":  # it takes 1 ms for each element of C
        M, N = (rng.choice((0, 1, 1, 2, 3, 5, 7)) for _ in "MN")
        return M, N, rng.choice((0, 1, 31, 255, 256, 257, 513))
    if not SMALL and rng.random() < 0.1:  # where 04 copies what TMA cannot read
        return [rng.randint(1030, 1500) for _ in "MNK"]
    limit = 80 if SMALL else 600
    kinds = (0, 1), EDGES, range(16, limit, 16), [p for p in PRIMES if p < limit], range(limit)
    return [rng.choice(rng.choices(kinds, (1, 3, 2, 2, 2))[0]) for _ in "MNK"]


def draw_strides(rng, rows, columns):
    pad, step = rng.choice((1, 3, 8, 16, 29)), rng.randint(2, 5)
    far = 2**40 if rows == 1 and rng.random() < 0.3 else 4099
    return rng.choice((
        (columns, 1), (columns, 1), (columns + pad, 1), (-(-columns // 16) * 16, 1),
        (step * columns, 1), (columns * step, step), (2 * columns * step, step), (far, 1), (far, 3),
        (0, 1), (1, 0), (0, 0),  # expanded
        (1, 1), (step, 1), (pad, step),  # overlapping
    ))


class Layout:
    """Where an operand lies; place() makes one, of random values, in a new storage that is NaN elsewhere."""

    def __init__(self, rng, rows, columns, dtype):
        self.shape, self.dtype = (rows, columns), dtype
        self.strides = draw_strides(rng, rows, columns)
        if rng.random() < 0.5:
            self.strides = draw_strides(rng, columns, rows)[::-1]
        self.offset = 64 + rng.choice((0, rng.randint(1, 7)))

    def __str__(self):
        return f"{str(self.dtype)[6:]} {self.shape} {self.strides} {self.offset - 64:+}"

    def place(self, generator):
        index = self.offset + sum(
            stride * torch.arange(n).view(shape)
            for n, stride, shape in zip(self.shape, self.strides, ((-1, 1), (1, -1)), strict=True))
        storage = torch.full([index.max() + 300 if index.numel() else 400], torch.nan)
        storage[index] = torch.randint(-1, 2, self.shape, generator=generator).float()
        return storage.to(scripts.DEVICE, self.dtype).as_strided(self.shape, self.strides, self.offset)


def bits(x):
    """All of x's storage, what lies around x included, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def difference(product, a, b):
    """What is wrong with product(a, b), if anything."""
    shape, dtype = (a.shape[0], b.shape[1]), torch.float16 if a.dtype in scripts.FLOAT8 else a.dtype
    before = bits(a).clone(), bits(b).clone()
    torch.full(shape, torch.nan, dtype=dtype, device=a.device)  # freed at once: C may lie there
    c = product(a, b)
    if (c.shape, c.dtype, c.device, c.is_contiguous(), c._is_view()) != (shape, dtype, a.device, True, False):
        return f"C is {c.dtype} {tuple(c.shape)} {c.stride()} on {c.device}, a view: {c._is_view()}"
    if not all(torch.equal(x, bits(y)) for x, y in zip(before, (a, b), strict=True)):
        return "an operand was written to"
    wrong = (c != (a.double() @ b.double()).to(dtype)).nonzero().tolist()
    return f"{len(wrong)} of {c.numel()} differ, the first at {wrong[0]}" if wrong else None


@contextlib.contextmanager
def steered(rng, grouped):
    """04 with configs drawn by rng in place of the tuned ones, and copies from a size drawn by rng."""
    plan, large = grouped.plan, rng.choice((1, grouped.LARGE))

    def plan_any(a, b, precision, config=None):
        tma = grouped.fits_tma(a) and grouped.fits_tma(b)
        widest = 64 if a.dtype == torch.float32 and precision == "ieee" else 256
        configs = [config for config in grouped.CONFIGS for meta in [config.kwargs]
                   if meta["TMA"] <= tma and max(meta["BLOCK_M"], meta["BLOCK_N"]) <= widest]
        for config in rng.sample(configs, len(configs)):
            with contextlib.suppress(OutOfResources):  # as the tuner would, on to the next
                return plan(a, b, precision, config)
        raise AssertionError("no config fits this card")

    with unittest.mock.patch.multiple(grouped, plan=plan_any, LARGE=large):
        yield


def run(case):
    """(number of the script, the failure in one line or None)."""
    rng, generator = random.Random(case), torch.Generator().manual_seed(case)
    number = list(scripts.PRODUCTS)[case % 4]
    M, N, K = draw_sizes(rng, number)
    dtypes = [rng.choice([x for x in scripts.DTYPES if number == "04" or x not in scripts.FLOAT8])] * 2
    if dtypes[0] in scripts.FLOAT8:
        dtypes[1] = rng.choice(scripts.FLOAT8)
    precision, steer = rng.choice(("highest", "high")), number == "04" and rng.random() < 0.5
    torch.set_float32_matmul_precision(precision)
    alike, other = ((Layout(rng, M, K, dtypes[0]), Layout(rng, K, N, dtypes[1])) for _ in range(2))
    scripts.MODULES["04"].PLANS.clear()
    with steered(rng, scripts.MODULES["04"]) if steer else contextlib.nullcontext():
        for a, b in alike, alike, other:
            try:
                found = difference(scripts.PRODUCTS[number], a.place(generator), b.place(generator))
            except Exception as error:
                found = " ".join(repr(error).split())[:300]
            if found:
                what = f"{number}, {a} @ {b}, {precision}" + ", a config at random" * steer
                return number, f"python .ci/fuzz.py --case {case}  # {what}: {found}"
    return number, None


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--seed", type=int, default=0, help="cases seed * 10**6, + 1, ...")
parser.add_argument("--only", choices=scripts.PRODUCTS, help="one script")
parser.add_argument("--case", type=int, help="this one alone")
arguments = parser.parse_args()

start = time.monotonic()
counts, failures = collections.Counter(), 0
first = list(scripts.PRODUCTS).index(arguments.only or "01")
cases = itertools.count(arguments.seed * 10**6 + first, 4 if arguments.only else 1)
for case in cases if arguments.case is None else [arguments.case]:
    if sys.stderr.isatty():
        print(case, end="\r", file=sys.stderr, flush=True)  # all that is left if it crashes
    number, failure = run(case)
    counts[number] += 1
    if failure:
        failures += 1
        print(failure, flush=True)
    if failures == 20 or time.monotonic() - start > arguments.seconds:
        break
device = "the interpreter" if SMALL else torch.cuda.get_device_name()
print(f"cases: {dict(sorted(counts.items()))}, {failures} failed; seed {arguments.seed}, "
      f"{time.monotonic() - start:.0f} s, {device}")
sys.exit(failures > 0)
