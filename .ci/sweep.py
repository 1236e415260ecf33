"""Ragged sizes through all four wrappers, exact: what compute-sanitizer watches in .ci/sanitize.sh.

Operands are made and results compared on the CPU, so a GPU runs hardly more than the scripts' kernels. 04
takes each size with the three configs that had the fewest turns, among all that it offers for these dtypes
and layouts: nothing is tuned. --tests: a script's unit tests, 04's with the first config that it would time.
--zeroed: 02 and 03 make C of zeros, for initcheck, which does not see what TMA stores.
"""
import argparse
import collections
import random
import unittest.mock

import scripts
import torch
import triton

DTYPES = {str(dtype)[6:]: dtype for dtype in scripts.DTYPES}
grouped = scripts.MODULES["04"]
turns, counts = collections.Counter(), collections.Counter()


def draw(rng, rows, columns, dtype, layouts):
    """The same values from {-1, 0, 1} on the device and on the CPU: contiguous, transposed, cut, expanded."""
    x = torch.randint(-1, 2, (rows, columns)).float()
    x, view = rng.choice((
        (x, lambda y: y),
        (x.T.contiguous(), lambda y: y.T),
        (torch.nn.functional.pad(x, (5, 4, 3, 6), value=torch.nan), lambda y: y[3:-6, 5:-4]),
        (x[:1], lambda y: y.expand(rows, columns)),
    )[:layouts])
    x = x.to(dtype)
    return view(x.to(scripts.DEVICE)), view(x)


def offered(a, b, precision):
    """The configs that 04 offers for such operands, whatever the sizes."""
    tma = grouped.fits_tma(a) and grouped.fits_tma(b)
    args = {"a": a, "N": 2**20, "PRECISION": precision, "FITS_TMA": tma}
    sizes = [{"M_KEY": M, "K": K} for M in (16, 2**20) for K in (1, 2**10)]
    configs = {str(c): c for size in sizes for c in grouped.fitting(grouped.CONFIGS, None, **args, **size)}
    return sorted(configs.values(), key=lambda config: turns[str(config)])


def compare(number, product, operands):
    (a, a_cpu), (b, b_cpu) = operands
    c = product(a, b).cpu()
    torch.testing.assert_close(c, (a_cpu.double() @ b_cpu.double()).to(c.dtype), rtol=0, atol=0)
    counts[number] += 1


def compare_grouped(operands, precision, configs):
    for config in configs:
        turns[str(config)] += 1
        try:
            launch = grouped.plan(*(x for x, _ in operands), precision, config)
        except triton.runtime.errors.OutOfResources as error:  # where the tuner goes on to the next
            print(operands[0][1].dtype, precision, config, error)
            continue
        compare("04", launch, operands)


def sweep(case, dtype):
    rng = random.Random(case)
    torch.manual_seed(case)
    M, N, K = (rng.randint(1, arguments.limit) for _ in "MNK")
    tma = rng.random() < 0.5
    if tma:  # it can read these, but a transposed one where M is ragged
        N, K = (N + 15) // 16 * 16, (K + 15) // 16 * 16
        M = M if rng.random() < 0.5 else (M + 15) // 16 * 16
    other = rng.choice(scripts.FLOAT8) if dtype in scripts.FLOAT8 else dtype
    operands = [draw(rng, *shape, 2 if tma else 4) for shape in ((M, K, dtype), (K, N, other))]
    precision = rng.choice(("highest", "high"))
    torch.set_float32_matmul_precision(precision)
    precision = "tf32" if dtype == torch.float32 and precision == "high" else "ieee"
    for number, product in scripts.PRODUCTS.items():
        if number != "04" and dtype not in scripts.FLOAT8:
            compare(number, product, operands)
    compare_grouped(operands, precision, offered(operands[0][0], operands[1][0], precision)[:3])


def large(dtype, count):
    """What 04 copies: rows at no multiple of 16 bytes, B in tf32 and float8."""
    for precision in ("ieee", "tf32")[:1 + (dtype == torch.float32)]:
        a, b = torch.randint(-1, 2, (1030, 1033)).to(dtype), torch.randint(-1, 2, (1033, 1031)).to(dtype)
        operands = (a.to(scripts.DEVICE), a), (b.to(scripts.DEVICE), b)
        aligned = torch.empty(64, 64, dtype=dtype, device=scripts.DEVICE)
        compare_grouped(operands, precision, offered(aligned, aligned, precision)[:count])


def zeroed(number):
    """Have that script's wrapper make zeros where it would make an empty tensor."""
    def product(a, b):
        with unittest.mock.patch.multiple(torch.Tensor, new_empty=torch.Tensor.new_zeros, new_empty_strided=(
                lambda *args: empty_strided(*args).zero_())):
            return wrapper(a, b)

    wrapper, empty_strided = scripts.PRODUCTS[number], torch.Tensor.new_empty_strided
    scripts.PRODUCTS[number] = product
    setattr(scripts.MODULES[number], wrapper.__name__, product)


def unit_tests(number):
    fitting = grouped.fitting
    grouped.fitting = lambda *args, **kwargs: fitting(*args, **kwargs)[:1]
    grouped.tuned_kernel.early_config_prune = grouped.fitting
    grouped.tuned_kernel._do_bench = lambda launch, quantiles: (launch(), [0.0])[1]
    for name in [name for name in vars(scripts.MODULES[number]) if name.startswith("test_")]:
        getattr(scripts.MODULES[number], name)()
        print(number, name, flush=True)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--shapes", type=int, default=40, help="of each dtype")
parser.add_argument("--limit", type=int, default=300, help="of M, N and K")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--dtype", choices=DTYPES, action="append", help="not all dtypes")
parser.add_argument("--large", type=int, default=1, help="configs for 1030x1031x1033, of each dtype")
parser.add_argument("--tests", choices=scripts.MODULES, help="this script's unit tests instead")
parser.add_argument("--zeroed", action="store_true", help="no empty tensors in 02 and 03")
arguments = parser.parse_args()
if arguments.zeroed:
    for number in "02", "03":
        zeroed(number)
if arguments.tests:
    unit_tests(arguments.tests)
else:
    for dtype in arguments.dtype or DTYPES:
        for i in range(arguments.shapes):
            sweep(arguments.seed * 10**6 + i, DTYPES[dtype])
        large(DTYPES[dtype], arguments.large)
    print(f"exact: products {dict(sorted(counts.items()))}, {len(turns)} of {len(grouped.CONFIGS)} configs")
