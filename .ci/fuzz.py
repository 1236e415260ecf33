"""The four products against float64: random layouts, special values, far offsets, refusals. On a GPU or the CPU.

C must be the float64 product rounded once, bit for bit but for a zero's sign, where that has no NaN. Operands
hold values from {-1, 0, 1}, unless they are special ones, and lie in storage that is NaN elsewhere. A NaN
tensor of C's shape is freed ahead of each call. Without an option: random cases, each one integer, case % 4
its script: two pairs of operands that are laid out alike and one that is not; half of 04's take any config.
"""
import argparse
import collections
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
    os.environ["TRITON_INTERPRET"] = "1"
import triton
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = pathlib.Path(__file__).parents[1]
WRAPPERS = {"01": "naive_matmul", "02": "block_matmul", "03": "coalesced_block_matmul", "04": "matmul"}
DTYPES = torch.float16, torch.bfloat16, torch.float32
SMALL = triton.knobs.runtime.interpret  # it takes some 10 ms a tile
DEVICE = "cpu" if SMALL else "cuda"


def load(number):
    """The script as a module of its own."""
    path = next(ROOT.glob(f"{number}_*.py"))
    spec = importlib.util.spec_from_file_location(f"script_{number}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = {number: load(number) for number in WRAPPERS}
PRODUCTS = {number: getattr(MODULES[number], name) for number, name in WRAPPERS.items()}


class Layout:
    """Where an operand lies: strides of any sort, drawn by rng, or those given."""

    def __init__(self, rng, rows, columns, dtype, strides=None):
        self.shape, self.dtype, self.negated = (rows, columns), dtype, rng.random() < 0.1
        turned = rng.random() < 0.5
        drawn = self.draw(rng, *self.shape[::-1])[::-1] if turned else self.draw(rng, *self.shape)
        self.strides, self.offset = strides or drawn, 64 + rng.choice((0, rng.randint(1, 7)))

    @staticmethod
    def draw(rng, rows, columns):
        pad, step = rng.choice((1, 3, 8, 16, 29)), rng.randint(2, 5)
        far = 2**40 if rows == 1 and rng.random() < 0.3 else 4099
        return rng.choice((
            (columns, 1), (columns, 1), (columns + pad, 1), (-(-columns // 16) * 16, 1),
            (step * columns, 1), (columns * step, step), (2 * columns * step, step), (far, 1), (far, 3),
            (0, 1), (1, 0), (0, 0),  # expanded
            (1, 1), (step, 1), (pad, step),  # overlapping
        ))

    def __str__(self):
        return f"{str(self.dtype)[6:]} {self.shape} {self.strides} {self.offset - 64:+}" + " neg" * self.negated

    def place(self, values):
        """values, or a generator's from {-1, 0, 1}, in a new storage that is NaN elsewhere."""
        if isinstance(values, torch.Generator):
            values = torch.randint(-1, 2, self.shape, generator=values)
        index = self.offset + sum(
            stride * torch.arange(n).view(shape)
            for n, stride, shape in zip(self.shape, self.strides, ((-1, 1), (1, -1)), strict=True))
        storage = torch.full([index.max() + 300 if index.numel() else 400], torch.nan)
        storage[index] = values.float()
        x = storage.to(DEVICE, self.dtype).as_strided(self.shape, self.strides, self.offset)
        return torch._neg_view(x) if self.negated else x


def bits(x):
    """All of x's storage, what lies around x included, as bytes; a copy of x where that is too much."""
    storage = x.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage) if len(storage) < 2**31 else x.clone()


def difference(product, a, b, rows=slice(None)):
    """What is wrong with product(a, b), if anything; of C's values only these rows are looked at."""
    shape, before = (a.shape[0], b.shape[1]), [bits(x).clone() for x in (a, b)]
    torch.full(shape, torch.nan, dtype=a.dtype, device=a.device)  # freed at once: C may lie there
    c = product(a, b)
    if (c.shape, c.dtype, c.device, c.is_contiguous(), c._is_view()) != (shape, a.dtype, a.device, True, False):
        return f"C is {c.dtype} {tuple(c.shape)} {c.stride()} on {c.device}, a view: {c._is_view()}"
    if not all(torch.equal(x, bits(y)) for x, y in zip(before, (a, b), strict=True)):
        return "an operand was written to"
    c, want = c[rows], (a[rows].double() @ b.double()).to(c.dtype)
    wrong = ((c != want) & ~(c.isnan() & want.isnan())).nonzero().tolist()
    first = wrong and f"{tuple(wrong[0])} is {c[tuple(wrong[0])]}, not {want[tuple(wrong[0])]}"
    return f"{len(wrong)} of {c.numel()} differ: {first}" if wrong else None


def attempt(*args):
    """difference(*args), or the exception in one line."""
    try:
        return difference(*args)
    except Exception as error:
        return " ".join(repr(error).split())[:300]


def any_config(rng, module, N, dtype, precision):
    """04's product with a config drawn by rng in place of the tuned one; the next where it does not fit."""
    def product(a, b):
        for config in configs:
            module.PLANS.clear()
            with unittest.mock.patch.object(module.tuned_kernel, "configs", [config]):
                with contextlib.suppress(triton.runtime.errors.OutOfResources):
                    return module.matmul(a, b)
        raise AssertionError("no config fits this card")

    slow = DEVICE == "cuda" and dtype == torch.float32 and precision == "highest"  # to compile
    configs = [config for config in module.CONFIGS for meta in [config.kwargs]
               if not (meta["PERSISTENT"] and N * dtype.itemsize % 16)
               and not (slow and max(meta["BLOCK_M"], meta["BLOCK_N"]) > 64)]
    rng.shuffle(configs)
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
    """(number of the script, the failure in one line or None)."""
    rng, generator, number = random.Random(case), torch.Generator().manual_seed(case), [*WRAPPERS][case % 4]
    (M, N, K), dtype, precision = draw_sizes(rng, number), rng.choice(DTYPES), rng.choice(("highest", "high"))
    alike, other = ([Layout(rng, M, K, dtype), Layout(rng, K, N, dtype)] for _ in range(2))
    product, steered = PRODUCTS[number], number == "04" and rng.random() < 0.5
    if steered:
        product = any_config(rng, MODULES["04"], N, dtype, precision)
    torch.set_float32_matmul_precision(precision)
    for a, b in alike, alike, other:
        found = attempt(product, a.place(generator), b.place(generator))
        if found:
            what = f"{number}, {a} @ {b}, {precision}" + ", any config" * steered
            return number, f"python .ci/fuzz.py --case {case}  # {what}: {found}"
    return number, None


def fuzz(arguments):
    """Random cases for some seconds, or one."""
    start, counts, failures = time.monotonic(), collections.Counter(), 0
    cases = itertools.count(arguments.seed * 10**6 + [*WRAPPERS].index(arguments.only or "01"))
    for case in itertools.islice(cases, 0, None, 4 if arguments.only else 1):
        number, failure = run(case if arguments.case is None else arguments.case)
        counts[number] += 1
        if failure:
            failures += 1
            print(failure, flush=True)
        if arguments.case is not None or failures == 20 or time.monotonic() - start > arguments.seconds:
            break
    return f"cases {dict(sorted(counts.items()))}", failures


def special_values(dtype, M, N, K, precision):
    """(name, a, b) in float32: NaN and infinities in random places; where nothing is cut to tf32, dtype's ends."""
    def planted(rows, columns, values):
        x = torch.randint(-1, 2, (rows, columns), generator=generator).float()
        x.view(-1)[torch.randperm(x.numel(), generator=generator)[:len(values)]] = torch.tensor(values)
        return x

    generator, nan, inf = torch.Generator().manual_seed(0), torch.nan, torch.inf
    for name, in_a, in_b in [
        ("NaN in a", [nan], []), ("NaN in b", [], [nan]), ("Inf in a", [inf, -inf], []),
        ("Inf in b", [], [inf, -inf]), ("Inf in both", [inf] * 3, [-inf] * 3),
        ("NaN, Inf, -0", [nan, inf, -inf, -0.0], [nan, inf, -inf, -0.0]),
    ]:
        yield name, planted(M, K, in_a), planted(K, N, in_b)
    yield "Inf by 0", torch.tensor([[inf], [-inf], [nan], [1.0]]), torch.tensor([[-0.0, 0.0, 1.0]])
    a, b = torch.zeros(2, 390), torch.zeros(390, 2)  # sums on whose way float16 rounds or overflows
    a[:, ::130] = torch.tensor([[256.0, 1, -256], [240, 240, -240]])
    b[::130] = torch.tensor([[8.0, 256], [1, 256], [8, 256]])
    yield "cancellation", a, b
    if precision == "highest":
        info = torch.finfo(dtype)
        half = info.max * info.eps / (2 - info.eps) / 2  # of the last place: more than that, or that, is Inf
        rows = [(info.max, half / 2), (info.max, half), (-info.max, -half / 2), (-info.max, -half)]
        yield "overflow", torch.tensor(rows, dtype=torch.float64), torch.ones(2, 3)
        normal, least = info.smallest_normal, info.smallest_normal * info.eps
        pairs = [(least, 0), (-least, 0), (normal - least, 0), (normal, -least), (least, -least)]
        yield "denormals in a", torch.tensor(pairs), torch.tensor([[1.0, -1.0]] * 2)
        yield "denormals in b", torch.tensor([[1.0, 1.0], [0.0, -1.0]]), torch.tensor(pairs).T
        tiny = torch.tensor([[least], [-least], [3 * least], [5 * least], [normal]])
        yield "halved denormals", tiny, torch.tensor([[0.5, -0.5, 2.0]])
        yield "underflow", tiny, tiny.T


def specials(arguments):
    """Special values through each script, dtype and precision."""
    count = failures = 0
    warnings.simplefilter("ignore")  # NumPy's, of NaN, under the interpreter
    for number, dtype, precision in itertools.product(PRODUCTS, DTYPES, ("highest", "high")):
        if precision == "high" and dtype != torch.float32 or arguments.only not in (None, number):
            continue
        torch.set_float32_matmul_precision(precision)
        sizes = (5, 6, 270) if SMALL and number == "01" else (130, 129, 70)
        for name, *operands in special_values(dtype, *sizes, precision):
            rng = random.Random(count)
            a, b = (Layout(rng, *x.shape, dtype, (x.shape[1] + 3, 1)).place(x) for x in operands)
            found, count = attempt(PRODUCTS[number], a, b), count + 1
            failures += bool(found)
            if found:
                print(f"{number}, {dtype}, {precision}, {name}: {found}", flush=True)
    return f"{count} products of special values", failures


def large(arguments):
    """Views of one tensor beyond 2**31 elements; on a GPU results of as many, and 65,537 tiles on a side."""
    def draw(rows, columns, stride=None):
        x = torch.randint(-1, 2, (rows, columns), device=DEVICE).half()
        return base.as_strided((rows, columns), stride).copy_(x) if stride else x

    base = torch.empty(2**31 + 2**20, dtype=torch.float16, device=DEVICE)
    far, walk, last, count, failures = (2**26, 1), (1, 45691142), slice(-64, None), 0, 0
    for number in [arguments.only] if arguments.only else PRODUCTS:
        cases = [
            ("rows of a", (33, 16, far), (16, 24)), ("k of a", (16, 48, walk), (48, 24)),
            ("k of b", (24, 48), (48, 16, walk[::-1])), ("columns of b", (24, 16), (16, 33, far[::-1])),
        ]
        if DEVICE == "cuda":
            side = 70_000 if number == "01" else 65_537 * 128  # 01's grid ends at 2**31
            cases += [("M", (side, 16), (16, 2)), ("N", (2, 16), (16, side))]
            cases += [("C", (65_600, 16), (16, 32_800))] * (number != "01")
        for name, a, b in cases:
            found, count = attempt(PRODUCTS[number], draw(*a), draw(*b), last), count + 1
            failures += bool(found)
            if found:
                print(f"{number}, large {name}: {found}", flush=True)
    return f"{count} large products", failures


class Launched(Exception):
    """A kernel was asked for, or a tensor made."""


class Watch(TorchDispatchMode):
    """Raises at the first operator that makes a tensor, but for a look at a tangent."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and operator is not torch.ops.aten.alias.default:
            raise Launched(f"{operator} ran")
        return result


def refused(number, a, b):
    """What the script's wrapper raises of a, b, with a trap in place of every kernel."""
    module, trap = MODULES[number], unittest.mock.MagicMock(side_effect=Launched("a kernel was reached"))
    trap.__getitem__.side_effect = trap.side_effect
    kernels = [name for name, x in vars(module).items() if isinstance(x, triton.runtime.jit.KernelInterface)]
    with unittest.mock.patch.multiple(module, **dict.fromkeys(kernels, trap)), Watch():
        try:
            return PRODUCTS[number](a, b)
        except Exception as error:
            return error


def refusals(arguments):
    """Bad operands: the exception's type, that its message shows them, and that nothing comes before it."""
    x = torch.ones(4, 4, device=DEVICE)
    half, gradient = x.half(), x.clone().requires_grad_()
    wrong = torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn
    rows = [
        (TypeError, "list", x.tolist(), x), (TypeError, "NoneType", x, None),
        (TypeError, "ndarray", x.cpu().numpy(), x), (TypeError, "float16.*float32", half, x),
        (TypeError, "float16.*bfloat16", half, x.bfloat16()), (TypeError, "int8.*float16", x.char(), half),
        *((TypeError, str(dtype), x.to(dtype), x.to(dtype)) for dtype in wrong),
        (ValueError, r"\(\)", x[0, 0], x), (ValueError, r"\(4,\)", x, x[0]),
        (ValueError, r"\(1, 4, 4\)", x[None], x), (ValueError, r"\(1, 4, 4\)", x[None], x[None]),
        (ValueError, r"\(4, 3\).*\(4, 4\)", x[:, :3], x), (ValueError, r"\(4, 0\).*\(4, 4\)", x[:, :0], x),
        (ValueError, "meta", x, x.to("meta")), (ValueError, "meta", x.to("meta"), x.to("meta")),
        *([(ValueError, "cuda.*cpu", x, x.cpu())] if DEVICE == "cuda" else []),
    ]
    first = [(RuntimeError, "gradient", x, gradient), (RuntimeError, "gradient", torch.nn.Parameter(x), x)]
    count = failures = 0
    with forward_ad.dual_level():
        dual, huge = forward_ad.make_dual(x, x), x[:1, :1].expand(2**31 - 511, 1)
        fourth = [(RuntimeError, "dual", dual, x), (RuntimeError, "dual", x, dual),
                  (ValueError, "2147483137", huge, x[:1, :1])]
        for number in [arguments.only] if arguments.only else PRODUCTS:
            for error, words, a, b in rows + (fourth if number == "04" else first):
                found, count = refused(number, a, b), count + 1
                if type(found) is not error or not re.search(words, str(found), re.DOTALL):
                    failures += 1
                    print(f"{number}: wants {error.__name__} {words!r}, got {found!r}"[:300], flush=True)
    return f"{count} refusals", failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="cases seed * 10**6, + 1, ...")
    parser.add_argument("--only", choices=PRODUCTS, help="one script")
    parser.add_argument("--case", type=int, help="this one alone")
    for task in specials, large, refusals:
        parser.add_argument(f"--{task.__name__}", dest="task", action="store_const", const=task, help=task.__doc__)
    arguments, start = parser.parse_args(), time.monotonic()
    what, failures = (arguments.task or fuzz)(arguments)
    device = "the interpreter" if SMALL else torch.cuda.get_device_name()
    print(f"{what}, {failures} failed; {time.monotonic() - start:.0f} s, {device}, Triton {triton.__version__}")
    sys.exit(failures > 0)
