"""The four products against float64, on a GPU or the CPU: random cases, or what an option names.

C must be the float64 product rounded once, bit for bit but for the sign of a zero or NaN. Operands lie in
storage that is NaN elsewhere, and a NaN tensor of C's shape is freed ahead of each call. A case is an
integer, modulo 4 its script: two pairs of operands laid out alike, of values from {-1, 0, 1}, one pair a
little aside, one laid out otherwise. Half of 04's cases take any config.
"""
import argparse
import contextlib
import importlib.util
import itertools
import os
import pathlib
import random
import re
import sys
import time
import unittest.mock
import warnings

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
    path = next(pathlib.Path(__file__).parents[1].glob(f"{number}_*.py"))
    spec = importlib.util.spec_from_file_location(f"script_{number}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = {number: load(number) for number in WRAPPERS}
PRODUCTS = {number: getattr(MODULES[number], name) for number, name in WRAPPERS.items()}


def draw_layout(rng, rows, columns):
    """Strides of any sort, in elements, and where the first one lies."""
    swap = rng.choice((1, -1))
    rows, columns = (rows, columns)[::swap]
    pad, step, far = rng.choice((1, 3, 8, 16, 29)), rng.randint(2, 5), rng.choice((2**40, 4099))
    far = far if rows == 1 else 4099
    return rng.choice((
        *[(columns, 1), (-(-columns // 16) * 16, 1)] * 3, (columns + pad, 1),
        (step * columns, 1), (columns * step, step), (2 * columns * step, step), (far, 1), (far, 3),
        (0, 1), (1, 0), (0, 0), (1, 1), (step, 1), (pad, step),  # expanded, overlapping
    ))[::swap], 64 + rng.choice((0, rng.randint(1, 7)))


def place(values, dtype, strides, offset):
    """values as a view that is laid out like this, in a new storage that is NaN elsewhere."""
    index = offset + sum(stride * torch.arange(n).view(shape) for n, stride, shape in zip(
        values.shape, strides, ((-1, 1), (1, -1)), strict=True))
    storage = torch.full([index.max() + 300 if index.numel() else 400], torch.nan)
    storage[index] = values.float()
    return storage.to(DEVICE, dtype).as_strided(values.shape, strides, offset)


def bits(x):
    """A copy of all of x's storage, what lies around x included, as bytes; of a huge one x."""
    storage = x.untyped_storage()
    return torch.tensor([], dtype=torch.uint8, device=x.device).set_(
        storage).clone() if len(storage) < 2**31 else x.clone()


def attempt(product, a, b, rows=slice(None)):
    """What is wrong with product(a, b), if anything; of C's values these rows are looked at."""
    shape, before = (a.shape[0], b.shape[1]), [bits(a), bits(b)]
    torch.full(shape, torch.nan, dtype=a.dtype, device=a.device)  # freed at once: C may lie there
    try:
        c = product(a, b)
    except Exception as error:
        return " ".join(repr(error).split())[:300]
    if (c.shape, c.dtype, c.device, c.is_contiguous()) != (shape, a.dtype, a.device, True) or c._is_view():
        return f"C is {c.dtype} {tuple(c.shape)} {c.stride()} on {c.device}, a view: {c._is_view()}"
    if not all(map(torch.equal, before, (bits(a), bits(b)))):
        return "an operand was written to"
    c, want = c[rows], (a[rows].double() @ b.double()).to(c.dtype)
    wrong = ((c != want) & ~(c.isnan() & want.isnan())).nonzero().tolist()
    return wrong and f"{len(wrong)} differ: {c[tuple(wrong[0])]} at {wrong[0]}, not {want[tuple(wrong[0])]}"


def any_config(rng, slow, N, itemsize):
    """04's product with a config drawn by rng in place of the tuned one; the next where it does not fit."""
    def product(a, b):
        for config in configs:
            grouped.PLANS.clear()
            with unittest.mock.patch.object(grouped.tuned_kernel, "configs", [config]):
                with contextlib.suppress(triton.runtime.errors.OutOfResources):
                    return grouped.matmul(a, b)
        raise AssertionError("no config fits this card")

    grouped, persistent = MODULES["04"], rng.random() < 0.5  # those first
    configs = [x for x in grouped.CONFIGS if x.kwargs["PERSISTENT"] * N * itemsize % 16 == 0
               and not (slow and max(x.kwargs["BLOCK_M"], x.kwargs["BLOCK_N"]) > 64)]
    configs.sort(key=lambda x: (persistent and not x.kwargs["PERSISTENT"], rng.random()))
    return product


def draw_sizes(rng, number):
    if SMALL and number == "01":  # which takes 1 ms for each element of C
        return *rng.choices((0, 1, 1, 2, 3, 5, 7), k=2), rng.choice((0, 1, 31, 255, 256, 257, 513))
    limit = 80 if SMALL else rng.choice((600, 600, 1500))
    edges = [tile + d for tile in (16, 32, 64, 128, 192) for d in (-1, 0, 1)]
    primes = [n for n in range(2, limit) if all(n % d for d in range(2, int(n**0.5) + 1))]
    kinds = (0, 1), edges, range(16, limit, 16), primes, range(limit)
    return [rng.choice(rng.choices(kinds, (1, 3, 2, 2, 2))[0]) for _ in "MNK"]


def run(case):
    """(what was multiplied, what is wrong)."""
    rng, generator, number = random.Random(case), torch.Generator().manual_seed(case), [*WRAPPERS][case % 4]
    (M, N, K), dtype, precision = draw_sizes(rng, number), rng.choice(DTYPES), rng.choice(("highest", "high"))
    product, steered = PRODUCTS[number], number == "04" and rng.random() < 0.5
    if steered:
        M, N = rng.choice(((M, N), (M + 128, N // 16 * 16 + 128)))  # several tiles, fit for persistent ones
        slow = not SMALL and dtype == torch.float32 and precision == "highest"  # to compile
        product = any_config(rng, slow, N, dtype.itemsize)
    torch.set_float32_matmul_precision(precision)
    alike, other = ([draw_layout(rng, M, K), draw_layout(rng, K, N)] for _ in range(2))
    moved = [(strides, 64 + rng.randint(0, 7)) for strides, _ in alike]
    for layouts in alike, alike, moved, other:
        a, b = (place(torch.randint(-1, 2, shape, generator=generator), dtype, *layout)
                for shape, layout in zip(((M, K), (K, N)), layouts, strict=True))
        a = torch._neg_view(a) if rng.random() < 0.2 else a
        if found := attempt(product, a, b):
            break
    what = f"{dtype} {(M, K)} {layouts[0]} @ {(K, N)} {layouts[1]} {precision}{', any config' * steered}"
    return f"python .ci/fuzz.py --case {case}  # {number}, {what}", found


def cases(arguments):
    """Random cases for some seconds, or one."""
    stop, first = time.monotonic() + arguments.seconds, arguments.seed * 10**6 + int(arguments.numbers[0]) - 1
    numbers = itertools.count(first, 4 // len(arguments.numbers))
    for case in numbers if arguments.case is None else [arguments.case]:
        yield run(case)
        if time.monotonic() > stop:
            break


def special_values(dtype, M, N, K):
    """a, b and whether tf32 holds them: NaN and infinities in random places, cancellation, dtype's ends."""
    def planted(rows, columns, values):
        x = torch.randint(-1, 2, (rows, columns), generator=generator).float()
        x.view(-1)[torch.randperm(x.numel(), generator=generator)[:len(values)]] = torch.tensor(values)
        return x

    generator, nan, inf, tensor = torch.Generator().manual_seed(0), torch.nan, torch.inf, torch.tensor
    for in_a, in_b in (
        ([nan], []), ([], [nan]), ([inf, -inf], []), ([], [inf, -inf]), ([inf] * 3, [-inf] * 3),
        ([nan, inf, -inf, -0.0], [nan, inf, -inf, -0.0]),
    ):
        yield planted(M, K, in_a), planted(K, N, in_b), True
    yield tensor([[inf], [-inf], [nan], [1.0]]), tensor([[-0.0, 0.0, 1.0]]), True
    a, b = torch.zeros(2, 390), torch.zeros(390, 2)  # sums on whose way float16 rounds or overflows
    a[:, ::130] = tensor([[256.0, 1, -256], [240, 240, -240]])
    b[::130] = tensor([[8.0, 256], [1, 256], [8, 256]])
    yield a, b, True
    info = torch.finfo(dtype)
    half = info.max * info.eps / (2 - info.eps) / 2  # of the last place: with that the sum is Inf
    rows = [(info.max, half / 2), (info.max, half), (-info.max, -half / 2), (-info.max, -half)]
    yield tensor(rows, dtype=torch.float64), torch.ones(2, 3), False
    normal, least = info.smallest_normal, info.smallest_normal * info.eps  # denormals from here on
    pairs = tensor([(least, 0), (-least, 0), (normal - least, 0), (normal, -least)])
    yield pairs, tensor([[1.0, -1.0]] * 2), False
    yield tensor([[1.0, 1.0], [0.0, -1.0]]), pairs.T, False
    tiny = tensor([[least], [-least], [3 * least], [5 * least], [normal]])
    yield tiny, tensor([[0.5, -0.5, 2.0]]), False
    yield tiny, tiny.T, False


def specials(arguments):
    """NaN, infinities, overflow, denormals, cancellation."""
    for number, dtype, precision in itertools.product(arguments.numbers, DTYPES, ("highest", "high")):
        torch.set_float32_matmul_precision(precision)
        sizes = (5, 6, 270) if SMALL and number == "01" else (130, 129, 70)
        for i, (a, b, rough) in enumerate(special_values(dtype, *sizes)):
            if precision == "highest" or dtype == torch.float32 and rough:
                a, b = (place(x, dtype, (x.shape[1] + 3, 1), 64) for x in (a, b))
                yield f"{number}, {dtype}, {precision}, special pair {i}", attempt(PRODUCTS[number], a, b)


def large(arguments):
    """Views of a tensor beyond 2**31 elements; on a GPU such results, and sides of 65,537 tiles."""
    def draw(rows, columns, stride=None):
        x = torch.randint(-1, 2, (rows, columns), device=DEVICE).half()
        return base.as_strided((rows, columns), stride).copy_(x) if stride else x

    base = torch.empty(2**31 + 2**20, dtype=torch.float16, device=DEVICE)
    far, walk = (2**26, 1), (1, 45691142)  # with which the last row, the last k, start beyond 2**31
    for number in arguments.numbers:
        sizes = [((33, 16, far), (16, 24)), ((24, 16), (16, 33, far[::-1])),
                 ((16, 48, walk), (48, 24)), ((24, 48), (48, 16, walk[::-1]))]
        if not SMALL:
            side = 70_000 if number == "01" else 65_537 * 128  # 01's grid ends at 2**31
            sizes += [((side, 16), (16, 2)), ((2, 16), (16, side))]
            sizes += [((65_600, 16), (16, 32_800))] * (number != "01")
        for a, b in sizes:
            yield f"{number}, {a} @ {b}", attempt(PRODUCTS[number], draw(*a), draw(*b), slice(-64, None))


class Watch(TorchDispatchMode):
    """Raises at the first operator that makes a tensor, as any launch needs, but for a look at a tangent."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and operator is not torch.ops.aten.alias.default:
            raise AssertionError(f"{operator} ran")
        return result


def refusals(arguments):
    """Bad operands: the exception's type, that its message shows them, that nothing comes before it."""
    x, others = torch.ones(4, 4, device=DEVICE), [torch.float64, torch.int8, torch.int64, torch.bool]
    others += [torch.complex64, torch.float8_e4m3fn]
    rows = [
        (TypeError, "list", x.tolist(), x), (TypeError, "NoneType", x, None),
        (TypeError, r"ndarray|dtype\(", x.cpu().numpy(), x), (TypeError, "float16.*float32", x.half(), x),
        (TypeError, "bfloat16.*float16", x.bfloat16(), x.half()), (TypeError, "int8.*16", x.char(), x.half()),
        *((TypeError, str(dtype), x.to(dtype), x.to(dtype)) for dtype in others),
        (ValueError, r"\(\)", x[0, 0], x), (ValueError, r"\(4,\)", x, x[0]),
        (ValueError, r"\(1, 4, 4\)", x[None], x), (ValueError, r"\(1, 4, 4\)", x[None], x[None]),
        (ValueError, r"\(4, 3\).*\(4, 4\)", x[:, :3], x), (ValueError, r"\(4, 0\).*\(4, 4\)", x[:, :0], x),
        (ValueError, "meta", x, x.to("meta")), (ValueError, "meta", x.to("meta"), x.to("meta")),
    ] + [(ValueError, "cuda.*cpu", x, x.cpu())] * (DEVICE == "cuda")
    first = [(RuntimeError, "gradient", x, x.clone().requires_grad_()),
             (RuntimeError, "gradient", torch.nn.Parameter(x), x)]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        fourth = [(RuntimeError, "dual", dual, x), (RuntimeError, "dual", x, dual)]
        for number in arguments.numbers:
            for error, words, a, b in rows + (fourth if number == "04" else first):
                try:
                    with Watch():
                        found = PRODUCTS[number](a, b)
                except Exception as exception:
                    found = exception
                right = type(found) is error and re.search(words, str(found), re.DOTALL)
                yield f"{number}, {error.__name__} with {words!r}", not right and repr(found)[:200]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="cases seed * 10**6, + 1, ...")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--only", choices=WRAPPERS, help="one script")
    parser.set_defaults(task=cases)
    for x in specials, large, refusals:
        parser.add_argument(f"--{x.__name__}", dest="task", action="store_const", const=x, help=x.__doc__)
    arguments, start, count, failures = parser.parse_args(), time.monotonic(), 0, 0
    arguments.numbers = [arguments.only] if arguments.only else [*WRAPPERS]
    warnings.simplefilter("ignore")  # NumPy's, of NaN, under the interpreter
    for what, found in arguments.task(arguments):
        count, failures = count + 1, failures + bool(found)
        if found:
            print(f"{what}: {found}", flush=True)
        if failures == 20:
            break
    device = "the interpreter" if SMALL else torch.cuda.get_device_name()
    print(f"{count} {arguments.task.__name__}, {failures} failed; {time.monotonic() - start:.0f} s, {device}")
    sys.exit(failures > 0)
