"""NaN, Inf, overflow, denormals: all four wrappers give what the float64 product gives, rounded once.

NaN is where it has NaN. Elsewhere the bits are the same, but for the sign of what float32 rounds to zero.
Operands are views: NaN and Inf lie between their rows and around them. 04 also gets the copies of large ones.
"""
import itertools
import sys
import unittest.mock
import warnings

import scripts
import torch

NAN, INF = torch.nan, torch.inf
OVERFLOW = {  # (b, rows of a): the last finite sum and the first infinite one, both signs
    torch.float16: (1, [(65504, 15), (65504, 16), (-65504, -15), (-65504, -16), (65504, 65504)]),
    torch.bfloat16: (1, [(2**128 - 2**120, 2**118), (2**128 - 2**120, 2**119), (-2**128 + 2**120, -2**119)]),
    torch.float32: (1, [(2**128 - 2**104, 2**102), (2**128 - 2**104, 2**103), (-2**128 + 2**104, -2**103)]),
    torch.float8_e4m3fn: (256, [(240, 12), (256, 0), (-240, -12), (-256, 0), (448, 448)]),
    torch.float8_e5m2: (1, [(57344, 7168), (57344, 8192), (-57344, -7168), (-57344, -8192)]),
}
BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}


def cut(x, dtype):
    """x in dtype, as a view of rows and columns that NaN and Inf surround."""
    around = torch.tensor([NAN, INF, -INF]).repeat(x.shape[0] + 5, x.shape[1] // 3 + 3)
    storage = around.to(scripts.DEVICE, dtype)
    return storage[2:2 + x.shape[0], 3:3 + x.shape[1]].copy_(x)


def planted(rows, columns, values, generator):
    """Values from {-1, 0, 1} with a few of these in random places, most rows and columns without."""
    x = torch.randint(-1, 2, (rows, columns), generator=generator).float()
    places = torch.randperm(rows * columns, generator=generator)[:len(values)]
    x.view(-1)[places] = torch.tensor(values, dtype=torch.float32)
    return x


def cases(dtype, M, N, K):
    """(name, a, b) in float32, and exact in tf32; float8 may round them, and e4m3fn has NaN for Inf."""
    generator = torch.Generator().manual_seed(0)
    for name, in_a, in_b in [
        ("ordinary values", [], []), ("NaN in a", [NAN], []), ("NaN in b", [], [NAN]),
        ("Inf in a", [INF, -INF], []), ("Inf in b", [], [INF, -INF]), ("Inf in both", [INF] * 3, [-INF] * 3),
        ("NaN, Inf, -0", [NAN, INF, -INF, -0.0], [NAN, INF, -INF, -0.0]),
    ]:
        yield name, planted(M, K, in_a, generator), planted(K, N, in_b, generator)
    yield "Inf by 0", torch.tensor([[INF], [-INF], [NAN], [1.0]]), torch.tensor([[-0.0, 0.0, 1.0]])
    yield "K = 0", torch.ones(M, 0), torch.ones(0, N)
    a, b = torch.zeros(2, 390), torch.zeros(390, 2)  # sums on whose way float16 rounds or overflows
    a[:, ::130] = torch.tensor([[256.0, 1, -256], [240, 240, -240]])
    b[::130] = torch.tensor([[8.0, 256], [1, 256], [8, 256]])
    yield "cancellation", a, b


def extremes(dtype):
    """(name, a, b) in float32: sums that are exact in it, or of one product, around dtype's ends."""
    b, rows = OVERFLOW[dtype]
    yield "overflow", torch.tensor(rows, dtype=torch.float64).float(), torch.full((2, 3), b).float()
    info = torch.finfo(dtype)
    least, normal = info.smallest_normal * info.eps, info.smallest_normal
    pairs = [(least, 0), (-least, 0), (normal - least, 0), (normal, -least), (least, -least)]
    yield "denormals in a", torch.tensor(pairs), torch.tensor([[1.0, -1.0]] * 2)
    yield "denormals in b", torch.tensor([[1.0, 1.0], [0.0, -1.0]]), torch.tensor(pairs).T
    tiny = torch.tensor([[least], [-least], [3 * least], [5 * least], [normal]])
    yield "halved denormals", tiny, torch.tensor([[0.5, -0.5, 2.0]])
    yield "underflow", tiny, tiny.T


def difference(product, a, b):
    """What is wrong with product(a, b), if anything."""
    dtype = torch.float16 if a.dtype in scripts.FLOAT8 else a.dtype
    exact = a.double() @ b.double()
    want = exact.to(dtype)
    torch.full(exact.shape, NAN, dtype=dtype, device=a.device)  # freed at once: C may lie there
    c = product(a, b)
    same = c.view(BITS[dtype]) == want.view(BITS[dtype])
    same |= c.isnan() & want.isnan() | (c == 0) & (want == 0) & (exact.abs() < 2**-149)
    wrong = (~same).nonzero().tolist()
    return wrong and f"{len(wrong)} differ, {wrong[0]} is {c[tuple(wrong[0])]}, not {want[tuple(wrong[0])]}"


def check(number, a_dtype, b_dtype, precision):
    """The number of cases, and the failures in one line each."""
    torch.set_float32_matmul_precision(precision)
    small = number == "01" and scripts.DEVICE == "cpu"  # where it takes 1 ms for each element of C
    found = [*cases(a_dtype, *((5, 6, 270) if small else (130, 129, 70)))]
    found += extremes(a_dtype) if precision == "highest" else []
    for name, *operands in found:
        a, b = (cut(x, dtype) for x, dtype in zip(operands, (a_dtype, b_dtype), strict=True))
        try:
            wrong = difference(scripts.PRODUCTS[number], a, b)
        except Exception as error:
            wrong = repr(error)
        yield name, wrong


warnings.simplefilter("ignore")  # NumPy's, of NaN, under the interpreter
RUNS = [(number, dtype, dtype) for number in scripts.PRODUCTS for dtype in scripts.DTYPES
        if number == "04" or dtype not in scripts.FLOAT8]
if scripts.FLOAT8[0] in scripts.DTYPES:
    RUNS += [("04", *dtypes) for dtypes in itertools.permutations(scripts.FLOAT8)]
grouped = scripts.MODULES["04"]
count = failures = 0
for number, *dtypes in RUNS:
    for precision, large in itertools.product(("highest", "high"), (1024, 1)):
        if precision == "high" and dtypes[0] != torch.float32 or large == 1 and number != "04":
            continue
        with unittest.mock.patch.multiple(grouped, LARGE=large, PLANS={}):
            found = [*check(number, *dtypes, precision)]
        print(number, *dtypes, precision, "copies" * (large == 1), f"{len(found)} cases", flush=True)
        for name, wrong in found:
            count, failures = count + 1, failures + bool(wrong)
            if wrong:
                print(f"FAILED {name}: {wrong}"[:300])
print(f"{count} cases, {failures} failed, on {scripts.DEVICE}")
sys.exit(failures > 0)
