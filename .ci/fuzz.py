"""The four products against float64, on a GPU or the CPU: random cases, or what an option names.

C must be the float64 product rounded once, bit for bit but for the sign of a zero or NaN. Operands lie in
storage that is NaN elsewhere; C and copies are NaN before they are written. A case is four pairs of operands:
two laid out alike, one a little aside, one otherwise. Half of 04's cases take any config.
"""
import argparse
import importlib
import itertools
import os
import pathlib
import random
import re
import sys
import time
import warnings
from contextlib import suppress
from unittest.mock import patch

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
import triton
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

WRAPPERS = {"01": "naive_matmul", "02": "block_matmul", "03": "coalesced_block_matmul", "04": "matmul"}
DTYPES = torch.float16, torch.bfloat16, torch.float32
SMALL = triton.knobs.runtime.interpret  # it takes some 10 ms a tile
DEVICE = "cpu" if SMALL else "cuda"


def load(number):
    """The script as a module of its own."""
    folder = pathlib.Path(__file__).parents[1]
    sys.path.insert(0, str(folder))
    return importlib.import_module(next(folder.glob(f"{number}_*.py")).stem)


MODULES = {number: load(number) for number in WRAPPERS}
PRODUCTS = {number: getattr(MODULES[number], name) for number, name in WRAPPERS.items()}


def draw_layout(rng, rows, columns):
    """Strides of any sort, in elements, and where the first one lies: expanded, overlapping, far too."""
    swap = rng.choice((1, -1))
    rows, columns = (rows, columns)[::swap]
    inner = rng.choice((1, 1, 1, 1, 1, 1, 0, rng.randint(2, 5)))
    dense, far = columns * inner, 2**40 if rows == 1 else 4099
    aligned, padded = triton.cdiv(dense, 16) * 16, dense + rng.choice((1, 3, 8, 16, 29))
    outer = rng.choice((dense, *[aligned] * 4, padded, 2 * dense, far, 0, *[rng.randint(1, 5)] * 2))
    return (outer, inner)[::swap], 64 + rng.choice((0, 0, rng.randint(1, 7)))


def place(values, dtype, strides, offset):
    """values as a view that is laid out like this, in a new storage that is NaN elsewhere."""
    row, column = map(torch.arange, values.shape)
    index = offset + row[:, None] * strides[0] + column * strides[1]
    storage = torch.full([index.max() + 300 if index.numel() else 400], torch.nan)
    storage[index] = values.float()
    return storage.to(DEVICE, dtype).as_strided(values.shape, strides, offset)


def attempt(product, a, b, last=0):
    """What is wrong with product(a, b), if anything; if last, of C's values only those rows are looked at."""
    whole = lambda x: x.new_empty(0, dtype=torch.uint8).set_(x.untyped_storage())  # what lies around x too
    operands = [whole(x) if len(x.untyped_storage()) < 2**31 else x for x in (a, b)]
    before, shape = [x.clone() for x in operands], (a.shape[0], b.shape[1])
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills C and copies with NaN at first
    try:
        c = product(a, b)
        assert c.shape == shape and c.is_contiguous() and not c._is_view(), "C has another layout"
        assert all(map(torch.equal, before, operands)), "an operand was written to"
        want = (a[-last:].double() @ b.double()).to(a.dtype)
        torch.testing.assert_close(c[-last:], want, rtol=0, atol=0, equal_nan=True)  # dtype and device too
    except Exception as error:
        return " ".join(repr(error).split())[:300]


def any_config(rng, slow, N, itemsize):
    """04's product with a config drawn by rng in place of the tuned one; the next where it does not fit."""
    def product(a, b):  # None, which is no product, if none fits
        for config in configs:
            grouped.PLANS.clear()
            with patch.object(grouped.tuned_kernel, "configs", [config]), suppress(triton.OutOfResources):
                return grouped.matmul(a, b)

    grouped, persistent = MODULES["04"], rng.random() < 0.5  # those first
    configs = [x for x in grouped.CONFIGS if x.kwargs["PERSISTENT"] * N * itemsize % 16 == 0
               and (SMALL or not slow or max(x.kwargs["BLOCK_M"], x.kwargs["BLOCK_N"]) <= 64)]
    configs.sort(key=lambda x: (persistent and not x.kwargs["PERSISTENT"], rng.random()))
    return product


def cases(arguments):
    """Random cases for some seconds, or one."""
    stop, numbers = time.monotonic() + arguments.seconds, itertools.count(arguments.seed * 10**6)
    for case in numbers if arguments.case is None else [arguments.case]:
        torch.manual_seed(case)
        rng, number = random.Random(case), arguments.numbers[case % len(arguments.numbers)]
        limit = 80 if SMALL else rng.choice((600, 600, 1500))
        edges = [tile + d for tile in (16, 32, 64, 128, 192) for d in (-1, 0, 1)]
        kinds = (0, 1), edges, range(16, limit, 16), range(limit)
        M, N, K = [rng.choice(rng.choices(kinds, (1, 3, 2, 4))[0]) for _ in "MNK"]
        if SMALL and number == "01":  # which takes 1 ms for each element of C
            M, N, K = *rng.choices((0, 1, 1, 2, 3, 5, 7), k=2), rng.choice((0, 1, 31, 255, 256, 257, 513))
        dtype, precision, product = rng.choice(DTYPES), rng.choice(("highest", "high")), PRODUCTS[number]
        torch.set_float32_matmul_precision(precision)
        if steered := number == "04" and rng.random() < 0.5:
            M, N = rng.choice(((M, N), (M + 128, N // 16 * 16 + 128)))  # tiles for persistent ones
            product = any_config(rng, dtype == torch.float32 and precision == "highest", N, dtype.itemsize)
        alike, other = ([draw_layout(rng, M, K), draw_layout(rng, K, N)] for _ in range(2))
        moved = [(strides, 64 + rng.randint(0, 7)) for strides, _ in alike]
        title = f".ci/fuzz.py --only {number} --case {case}: {dtype} {precision}{', any config' * steered}"
        for layouts in alike, alike, moved, other:
            a = place(torch.randint(-1, 2, (M, K)), dtype, *layouts[0])
            b = place(torch.randint(-1, 2, (K, N)), dtype, *layouts[1])
            a = torch._neg_view(a) if rng.random() < 0.2 else a
            yield f"{title} {(M, K)} {layouts[0]} @ {(K, N)} {layouts[1]}", attempt(product, a, b)
        if time.monotonic() > stop:
            break


def specials(arguments):
    """NaN, infinities, overflow, denormals, cancellation."""
    tensor, odd = torch.tensor, torch.tensor([[torch.nan, torch.inf, -torch.inf, -0.0]])
    for number, dtype in itertools.product(arguments.numbers, DTYPES):
        M, N, K = (5, 6, 270) if SMALL and number == "01" else (130, 129, 70)
        x, y = torch.randint(-1, 2, (M, K)).float(), torch.randint(-1, 2, (K, N)).float()
        odd_x, odd_y, (m, n, k) = x.clone(), y.clone(), ([0, 1, side - 2, side - 1] for side in (M, N, K))
        odd_x[m, k] = odd_y[k, n] = odd
        # Sums on whose way float16 rounds or overflows.
        far_x = torch.kron(tensor([[256.0, 1, -256], [240, 240, -240]]), torch.eye(1, 130))
        far_y = torch.kron(tensor([[8.0, 1, 8], [256, 256, 256]]), torch.eye(1, 130)).T
        rough = [(odd_x, y), (x, odd_y), (odd_x, odd_y), (odd.T, odd), (far_x, far_y)]
        # What tf32 cannot hold: dtype's largest and half a last place, which makes Inf of it; denormals.
        info, factors = torch.finfo(dtype), tensor([(0.5, -0.5, 2, 1, -1), (0, 0, 2, 1, -1)])
        half, normal = info.max * info.eps / (2 - info.eps) / 2, info.smallest_normal
        ends, least = tensor([(info.max, half / 2), (info.max, half)]), normal * info.eps
        small = tensor([(least, 3 * least, 5 * least, normal - least, normal), (0, 0, 0, 0, -least)])
        fine = [(ends, factors[:, 3:]), (small.T, factors), (factors.T, small), (small.T, small)]
        for precision, pairs in ("highest", rough + fine), ("high", rough):
            torch.set_float32_matmul_precision(precision)
            for i, pair in enumerate(pairs):
                a, b = (place(x, dtype, (x.shape[1] + 3, 1), 64) for x in pair)
                yield f"{number}, {dtype}, {precision}, special pair {i}", attempt(PRODUCTS[number], a, b)


def large(arguments):
    """Views of a tensor beyond 2**31 elements; on a GPU such results, and sides of 65,537 tiles."""
    draw = lambda *shape: torch.randint(-1, 2, shape, device=DEVICE).half()
    base = torch.empty(2**31 + 2**20, dtype=torch.float16, device=DEVICE)
    far = base.as_strided((33, 16), (2**26, 1)).copy_(draw(33, 16))  # the last row is beyond 2**31
    walk = base.as_strided((16, 48), (1, 45691142), 64).copy_(draw(16, 48))  # the last k
    pairs = [(far, draw(16, 24)), (draw(24, 16), far.T), (walk, draw(48, 24)), (draw(24, 48), walk.T)]
    for number in arguments.numbers:
        side = 70_000 if number == "01" else 65_537 * 128  # 01's grid ends at 2**31
        shapes = [(side, 16, 2), (2, 16, side)] + [(65_600, 16, 32_800)] * (number != "01")
        more = ((draw(M, K), draw(K, N)) for M, K, N in shapes if not SMALL)
        for a, b in itertools.chain(pairs, more):
            yield f"{number}, {a.shape} @ {b.shape}", attempt(PRODUCTS[number], a, b, last=64)


def refusals(arguments):
    """Bad operands: the exception's type, that its message shows them, that nothing comes before it."""
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            assert operator is torch.ops.aten.alias.default, f"{operator} ran"  # a look at a tangent
            return operator(*args)

    x, meta = torch.ones(4, 4, device=DEVICE), torch.ones(4, 4, device="meta")
    others = torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn
    shapes = (x[0, 0], x), (x, x[0]), (x[None], x), (x[None], x[None]), (x[:, :3], x), (x[:, :0], x)
    rows = [
        ("TypeError.*list", x.tolist(), x), ("TypeError.*NoneType", x, None),
        (r"TypeError.*(ndarray|dtype\()", x.cpu().numpy(), x), ("TypeError.*float16.*float32", x.half(), x),
        ("TypeError.*bfloat16.*float16", x.bfloat16(), x.half()), ("TypeError.*int8.*16", x.char(), x.half()),
        *((f"TypeError.*{dtype}", x.to(dtype), x.to(dtype)) for dtype in others),
        *(("ValueError.*" + re.escape(f"{(*a.shape,)}, {(*b.shape,)}"), a, b) for a, b in shapes),
        ("ValueError.*meta", x, meta), ("ValueError.*meta", meta, meta),
    ] + [("ValueError.*cuda.*cpu", x, x.cpu())] * (DEVICE == "cuda")
    with forward_ad.dual_level():
        dual, leaf = forward_ad.make_dual(x, x), torch.nn.Parameter(x)
        for number in arguments.numbers:
            y = dual if number == "04" else leaf
            for words, a, b in [*rows, ("RuntimeError.*gradient", x, y), ("RuntimeError.*gradient", y, x)]:
                try:
                    with Watch():
                        found = PRODUCTS[number](a, b)
                except Exception as exception:
                    found = exception
                yield f"{number}, {words}", not re.match(words, repr(found)) and repr(found)[:200]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="cases seed * 10**6, + 1, ...")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--only", dest="numbers", nargs=1, choices=WRAPPERS, default=[*WRAPPERS])
    parser.set_defaults(task=cases)
    for x in specials, large, refusals:
        parser.add_argument(f"--{x.__name__}", dest="task", action="store_const", const=x, help=x.__doc__)
    arguments, start, count, failed = parser.parse_args(), time.monotonic(), 0, 0
    warnings.simplefilter("ignore")  # NumPy's, of NaN, under the interpreter
    for what, found in arguments.task(arguments):
        count, failed = count + 1, failed + bool(found)
        if found:
            print(f"{what}: {found}", flush=True)
    print(f"{arguments.task.__name__}: {count}, {failed} failed; {time.monotonic() - start:.0f} s, {DEVICE}")
    sys.exit(failed > 0)
