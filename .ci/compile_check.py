"""The four scripts compiled for ten cards, without a GPU: would the wrappers' kernels run well?

Every wrapper is called on pretended cards, where kernels are compiled and loaded, but not launched.
- They fit the card's shared memory: of 04's configs one for each product (the tuner skips others), and each
  config for some product. Blocks are powers of two from 16 up. Tensor descriptors are such as TMA takes.
- float16 and bfloat16 take the card's own tensor core instruction; none on sm_75.
- Float16 is loaded 16 bytes at a time where 16 divides the sides, or by TMA; 04 stores so where 8 divides N.
- 04 on an H200: a tuning that failed leaves nothing behind, and a plan is launched on the operands at hand.
All of 04's configs are compiled for the first card, samples for others. Arguments: the cards, if not all.
"""
import concurrent.futures
import itertools
import math
import multiprocessing
import os
import pathlib
import re
import sys
import tempfile
from types import SimpleNamespace
from unittest import TestCase, mock

os.environ["TRITON_INTERPRET"] = "0"
import fuzz
import torch
import triton

CARDS = {  # KiB of shared memory, instruction for tiles of 64 rows or more
    "sm_90": (227, "wgmma.mma_async"), "gfx942": (64, "v_mfma"), "sm_80": (163, "mma.sync"),
    "sm_75": (64, None), "sm_86": (99, "mma.sync"), "sm_89": (99, "mma.sync"),
    "sm_100": (227, "tcgen05.mma"), "sm_120": (99, "mma.sync"),
    "gfx950": (160, "v_mfma"), "gfx1100": (64, "v_wmma"),
}
CASES = [  # M, N, K, whether A and whether B is transposed; each card takes its turn
    (2048, 2040, 2048, False, True), (16, 256, 4096, False, False),
    (256, 512, 256, True, False), (2047, 2049, 2050, False, False),
]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "ieee": torch.float32, "tf32": torch.float32}
INSTRUCTION = re.compile(r"\b(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync|v_mfma|v_wmma)")
LOAD = re.compile(r"ld\.global[.:\w]*|cp\.async\.c[ag]\.[^;]*|cp\.async\.bulk\.tensor\.2d\.shared")
WIDE = {True: r"cp\.async\.bulk\.tensor", False: r"ld\.global\.v4\.b32|cp\.async\.c.*\], 0x10,"}  # by TMA?
SPACE = "PIECES", "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages"
jit_run, now, grouped = triton.JITFunction.run, SimpleNamespace(), fuzz.MODULES["04"]


def launched(*args):
    """In place of a launch. What else TMA would not take no TensorDescriptor does."""
    operands = [x for x in args if isinstance(x, (torch.Tensor, grouped.TensorDescriptor))]
    now.addresses = [getattr(x, "base", x).data_ptr() for x in operands]
    now.wrong += [f"{now.case}: TMA cannot read {x.shape}, strides {x.strides}" for x in operands
                  if isinstance(x, grouped.TensorDescriptor) and x.strides[0] * x.base.itemsize >= 2**40]


def noted_run(kernel, *args, **kwargs):
    """JITFunction.run, which notes what it compiles, and what is wrong with that."""
    meta, (shared, wanted) = dict(zip(kernel.arg_names, args, strict=False)) | kwargs, CARDS[now.card]
    sizes = {name: size for name, size in meta.items() if name.startswith(("BLOCK", "PIECES", "num_"))}
    title = f"{now.case} {kernel.__name__} {sizes}"
    if any(size & (size - 1) or size < 16 for name, size in sizes.items() if name.startswith("BLOCK")):
        now.wrong.append(f"{title}: blocks must be powers of two from 16 up")
    try:
        compiled = jit_run(kernel, *args, **kwargs)
    except Exception as error:
        if kwargs["warmup"] and not isinstance(error, SystemError):  # 04 would skip it without a word
            now.wrong.append(f"{title}: {type(error).__name__}: {error}")
        raise
    now.kernels.add(compiled.hash)
    if compiled.metadata.shared <= shared * 1024:
        now.fits |= {str(x) for x in grouped.CONFIGS if kwargs.items() >= x.all_kwargs().items()}
    if now.dtype.itemsize == 2 and {"BLOCK", "BLOCK_N"} & {*sizes}:  # with tl.dot
        ptx = compiled.asm.get("ptx", "")
        found, loads = {*INSTRUCTION.findall(ptx or compiled.asm["amdgcn"])}, {*LOAD.findall(ptx)}
        right = {"mma.sync" if wanted and ptx and sizes.get("BLOCK_M") == 16 else wanted} - {None}
        if found != right:
            now.wrong.append(f"{title}: {found or 'no tensor core'}, not {right or 'none'}")
        wide = loads and all(re.match(WIDE[meta.get("TMA", False)], x) for x in loads)
        narrow = sizes.get("BLOCK_M", 0) > 16 and re.search(r"st\.global(?!\.v4)[.\w]*", ptx)
        if ptx and now.case != CASES[3] and (narrow or not wide):
            now.wrong.append(f"{title}: loads by {loads}, narrow stores: {narrow}")
    return compiled


def pretend(card, precision):
    """Let torch and Triton see this card, and 04 forget the last."""
    hip, version = "7.0" if card.startswith("gfx") else None, int(card[3:])
    major = version // (100 if hip else 10)
    target = ("hip", card, 64 if major < 10 else 32) if hip else ("cuda", version, 32)
    triton.runtime.driver.set_active(mock.MagicMock(**{
        "get_current_device.return_value": [*CARDS].index(card),  # by which Triton keeps kernels, properties
        "get_current_target.return_value": triton.backends.compiler.GPUTarget(*target),
        "launcher_cls.return_value": launched, "utils.load_binary.return_value": (1, 2, 0, 0, 1024),
        "utils.get_device_properties.return_value": {"max_shared_mem": CARDS[card][0] * 1024}}))
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(major=major, multi_processor_count=132)
    torch.version.hip, torch.Tensor.is_cuda, torch.cuda.device_of = hip, True, mock.MagicMock()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    triton.JITFunction.run = noted_run
    grouped.tuned_kernel.do_bench = lambda launch, quantiles: (launch(), [1.0])[1]
    grouped.PLANS.clear(), grouped.tuned_kernel.cache.clear()
    vars(now).update(card=card, dtype=DTYPES[precision], fits=set(), kernels=set(), wrong=[])


def multiply(number, configs):
    """The script's product of the case at hand; 04 tunes among these configs."""
    M, N, K, a_t, b_t = now.case
    a = torch.empty(K, M, dtype=now.dtype).T if a_t else torch.empty(M, K, dtype=now.dtype)
    b = torch.empty(N, K, dtype=now.dtype).T if b_t else torch.empty(K, N, dtype=now.dtype)
    with mock.patch.object(grouped.tuned_kernel, "configs", configs):
        fuzz.PRODUCTS[number](a, b)


def tune():
    """A tuning that failed, one that did not, and what plans are launched with."""
    x = torch.empty(3, 2**14, dtype=now.dtype)
    operands = lambda i, j, skip=0: (x[i, skip:][:2**13].view(64, 128), x[j, :2**13].view(64, 128).T)
    files = lambda: [*pathlib.Path(triton.knobs.cache.dir).rglob("*.autotune.json")]
    kept = lambda: [len(x) for x in (grouped.PLANS, grouped.tuned_kernel.cache, files())]
    fail = lambda **kwargs: {}[kwargs["BLOCK_K"]]  # a KeyError that tells the configs apart
    with mock.patch.object(grouped.tuned_kernel, "configs", grouped.CONFIGS[:2]):
        with mock.patch.object(grouped.tuned_kernel.fn, "warmup", fail):
            with TestCase().assertRaisesRegex(KeyError, f"^{grouped.CONFIGS[0].kwargs['BLOCK_K']}$"):
                grouped.matmul(*operands(0, 1))
        assert kept() == [0, 0, 0], f"{kept()} plans, choices, files after an error"
        for i, j in (0, 1), (0, 1), (2, 1), (1, 2):
            a, b = operands(i, j)
            c = grouped.matmul(a, b)
            assert now.addresses == [x.data_ptr() for x in (a, b, c)], "a plan was launched on others"
        assert kept() == [1, 1, 1], f"one size leaves {kept()} plans, choices, files"
        grouped.matmul(*operands(0, 1, skip=1))  # which TensorDescriptor refuses if they share that plan
        grouped.matmul(x.view(-1, 8)[:64, :1], x[0, :128].as_strided((1, 128), (2**40, 1)))  # a far row


def examine(number, card, precision):
    """One script, card and precision: how many kernels, the configs that fit, what is wrong."""
    pretend(card, precision)
    turn, more = [*CARDS].index(card), precision == "float16"
    cases = [CASES[turn % 4]] if not more else CASES[turn % 3:turn % 3 + 2] if turn else CASES
    lean = sorted(grouped.CONFIGS, key=lambda x: math.prod(x.all_kwargs()[name] for name in SPACE))
    some = lean[:3] + lean[3 + turn % 6::6] * (more and card[0] == "s" and card != "sm_75")  # others are slow
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as triton.knobs.cache.dir:
        for now.case in ["tuning"] if number == "tuning" else cases:
            every = more and turn == 0 and now.case == CASES[0]
            try:
                multiply(number, lean if every else some) if number in fuzz.PRODUCTS else tune()
            except Exception as error:
                now.wrong.append(f"{now.case}: {type(error).__name__}: {error}")
    return len(now.kernels), now.fits, now.wrong


if __name__ == "__main__":
    jobs = [("tuning", "sm_90", "float16")]
    jobs += itertools.product(reversed(fuzz.WRAPPERS), sys.argv[1:] or CARDS, DTYPES)
    spawn, cores = multiprocessing.get_context("spawn"), len(os.sched_getaffinity(0))
    failures, unfit = 0, {str(x) for x in grouped.CONFIGS if "sm_90" in sys.argv[1:] or not sys.argv[1:]}
    with concurrent.futures.ProcessPoolExecutor(cores, spawn) as pool:
        results = pool.map(examine, *zip(*jobs, strict=True))
        for job, (kernels, fits, wrong) in zip(jobs, results, strict=True):
            failures, unfit = failures + len(wrong), unfit - fits
            print(f"{' '.join(job)}: {kernels} kernels", *wrong, sep="\n    FAILED ", flush=True)
    print("All cards:", *unfit, sep="\n    FAILED no product is offered, or no card holds, ")
    print(f"{len(jobs)} combinations on Triton {triton.__version__}, {failures + len(unfit)} failures")
    sys.exit(bool(failures or unfit))
