"""The four scripts compiled for ten cards, without a GPU: would the wrappers' kernels run well?

Every wrapper is called on pretended cards, where kernels are compiled and loaded, but not launched.
- They fit the card's shared memory: of 04's configs one for each product (the tuner skips others), and each
  config for some product. Blocks are powers of two from 16 up, tensor descriptors such as TMA takes.
- float16 and bfloat16 take the card's own tensor core instruction; none on sm_75.
- Float16 operands at multiples of 16 bytes are loaded 16 bytes at a time in 02 to 04, by TMA where 04 has it.
- 04 on an H200: a tuning that failed leaves nothing behind, and a plan is launched on the operands at hand.
All of 04's configs are compiled for the first card, samples for others. Arguments: the cards, if not all.
"""
import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
import re
import sys
import tempfile
import unittest.mock
import warnings
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "0"
import fuzz
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor

CARDS = {  # compute capability, KiB of shared memory, instruction for tiles of 64 rows or more
    "sm_90": ((9, 0), 227, "wgmma.mma_async"),
    "gfx942": ((9, 4), 64, "v_mfma"),
    "sm_80": ((8, 0), 163, "mma.sync"),
    "sm_75": ((7, 5), 64, None),
    "sm_86": ((8, 6), 99, "mma.sync"),
    "sm_89": ((8, 9), 99, "mma.sync"),
    "sm_100": ((10, 0), 227, "tcgen05.mma"),
    "sm_120": ((12, 0), 99, "mma.sync"),
    "gfx950": ((9, 5), 160, "v_mfma"),
    "gfx1100": ((11, 0), 64, "v_wmma"),
}
CASES = [  # M, N, K, whether A and whether B is transposed; each card takes its turn
    (2048, 2048, 2048, False, True), (16, 256, 4096, False, False),
    (256, 512, 256, True, False), (2047, 2049, 2050, False, False),
]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "ieee": torch.float32, "tf32": torch.float32}
INSTRUCTION = re.compile(r"\b(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync|v_mfma|v_wmma)")
LOAD = re.compile(r"ld\.global[.:\w]*|cp\.async\.c[ag]\.[^;]*|cp\.async\.bulk\.tensor\.2d\.shared")
WIDE = re.compile(r"ld\.global\.v4\.b32|cp\.async\.c.*\], 0x10,|cp\.async\.bulk\.tensor")
jit_run, now, grouped = triton.JITFunction.run, SimpleNamespace(), fuzz.MODULES["04"]


def launched(*args):
    """In place of a launch: notes the addresses that it is passed, and what TMA would not take."""
    operands = [x for x in args if isinstance(x, (torch.Tensor, TensorDescriptor))]
    now.addresses = [getattr(x, "base", x).data_ptr() for x in operands]
    for x, address in zip(operands, now.addresses, strict=True):
        if isinstance(x, TensorDescriptor):
            pitch = x.strides[0] * x.base.itemsize
            if address % 16 or pitch % 16 or pitch >= 2**40 or x.strides[-1] != 1:
                now.wrong.append(f"{now.case}: TMA cannot read {x.shape}, strides {x.strides}")


def begin(card, precision):
    """Let torch and Triton see this card, and 04 forget the last."""
    (major, minor), shared, _ = CARDS[card]
    hip = card.startswith("gfx")
    wide = 64 if hip and major < 10 else 32
    target = GPUTarget("hip", card, wide) if hip else GPUTarget("cuda", 10 * major + minor, wide)
    properties = SimpleNamespace(
        major=major, minor=minor, name=card, gcnArchName=card, multi_processor_count=132)
    utils = SimpleNamespace(
        load_binary=lambda *args: (1, 2, 0, 0, 1024), unload_module=lambda *args: None,
        get_device_properties=lambda device: {"max_shared_mem": shared * 1024, "multiprocessor_count": 132})
    triton.runtime.driver.set_active(SimpleNamespace(
        utils=utils, launcher_cls=lambda source, metadata: launched,
        get_current_device=lambda: [*CARDS].index(card),  # by which Triton keeps kernels and properties
        get_current_stream=lambda device=None: 0, get_current_target=lambda: target,
        get_device_interface=lambda: torch.cuda))
    torch.version.cuda, torch.version.hip = (None, "7.0") if hip else ("13.0", None)
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.is_current_stream_capturing, torch.cuda.current_device = lambda: False, lambda: None
    torch.cuda.device_of, torch.Tensor.is_cuda = lambda x: contextlib.nullcontext(), True
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    vars(now).update(card=card, precision=precision, fits=set(), kernels=set(), broken={}, wrong=[])
    grouped.PLANS.clear(), grouped.tuned_kernel.cache.clear()


def noted_run(kernel, *args, **kwargs):
    """JITFunction.run, which notes what it compiles, and what is wrong with that."""
    meta = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    blocks = {name: size for name, size in meta.items() if name.startswith(("BLOCK", "PIECES", "num_"))}
    title = f"{now.case} {kernel.__name__} {blocks}"
    if any(size & (size - 1) or size < 16 for name, size in blocks.items() if name.startswith("BLOCK")):
        now.wrong.append(f"{title}: blocks must be powers of two from 16 up")
    try:
        compiled = jit_run(kernel, *args, **kwargs)
    except Exception as error:
        if kwargs["warmup"] and not isinstance(error, SystemError):  # 04 would skip it without a word
            now.broken[title] = f"{title}: {type(error).__name__}: {' '.join(str(error).split())[-200:]}"
        raise
    now.broken.pop(title, None)
    now.kernels.add(compiled.hash)
    if compiled.metadata.shared <= CARDS[now.card][1] * 1024:
        now.fits |= {str(x) for x in grouped.CONFIGS if kwargs.items() >= x.all_kwargs().items()}
    ptx, wanted = compiled.asm.get("ptx", ""), CARDS[now.card][2]
    if wanted and ptx and meta.get("BLOCK_M") == 16:
        wanted = "mma.sync"
    if now.precision in ("float16", "bfloat16") and {"BLOCK", "BLOCK_N"} & {*blocks}:  # with tl.dot
        found, loads = {*INSTRUCTION.findall(ptx + compiled.asm.get("amdgcn", ""))}, {*LOAD.findall(ptx)}
        if found != {wanted} - {None}:
            now.wrong.append(f"{title}: {found or 'no tensor core'}, not {wanted}")
        narrow = [load for load in loads if not WIDE.match(load)]
        if ptx and now.case != CASES[3] and (narrow or not loads or meta.get("TMA") and len(loads) > 1):
            now.wrong.append(f"{title}: loads by {narrow[:3] or loads}")
    return compiled


def sample(card, precision):
    """Of 04's configs all, or those of 16 rows, the leanest other and, in float16, some more in turn."""
    thin = [x for x in grouped.CONFIGS if x.kwargs["BLOCK_M"] == 16]
    rest = sorted((x for x in grouped.CONFIGS if x not in thin), key=lambda x: (
        x.kwargs["PIECES"] * x.kwargs["BLOCK_M"] * x.kwargs["BLOCK_N"] * x.kwargs["BLOCK_K"] * x.num_stages))
    turn, some = [*CARDS].index(card), precision == "float16" and card != "sm_75"  # slow to compile for
    every = turn == 0 and now.case == CASES[0]
    return thin + (rest if some and every else rest[:1] + rest[1 + turn % 6::6] * some)


def examine(number, card, precision):
    """One script, card and precision: how many kernels, the configs that fit, what is wrong."""
    begin(card, precision)
    turn, dtype = [*CARDS].index(card), DTYPES[precision]
    cases = CASES if turn == 0 else CASES[turn % 3:turn % 3 + 2]
    for now.case in cases if precision == "float16" else [CASES[turn % 4]]:
        M, N, K, a_t, b_t = now.case
        a = torch.empty(K, M, dtype=dtype).T if a_t else torch.empty(M, K, dtype=dtype)
        b = torch.empty(N, K, dtype=dtype).T if b_t else torch.empty(K, N, dtype=dtype)
        with unittest.mock.patch.object(grouped.tuned_kernel, "configs", sample(card, precision)):
            try:
                fuzz.PRODUCTS[number](a, b)
            except Exception as error:
                now.wrong.append(f"{now.case}: {type(error).__name__}: {' '.join(str(error).split())[-200:]}")
    return len(now.kernels), now.fits, now.wrong + [*now.broken.values()]


def tune():
    """04 on an H200: a tuning that failed, one that did not, and what plans are launched with."""
    begin("sm_90", "float16")
    now.case, x = "tuning", torch.empty(3, 2**14, dtype=torch.float16)
    operands = lambda i, j, skip=0: (x[i][skip:][:2**13].view(64, 128), x[j][:2**13].view(64, 128).T)
    files = lambda: len([*pathlib.Path(triton.knobs.cache.dir).rglob("*.autotune.json")])
    kept, before = lambda: (len(grouped.PLANS), len(grouped.tuned_kernel.cache), files() - before), files()
    configs = [x for x in grouped.CONFIGS if x.kwargs["BLOCK_M"] == 64][:2]

    def fail(**kwargs):
        raise RuntimeError(f"{kwargs['BLOCK_N']} columns, {kwargs['BLOCK_K']} along K")

    with unittest.mock.patch.object(grouped.tuned_kernel, "configs", configs):
        with unittest.mock.patch.object(grouped.tuned_kernel.fn, "warmup", fail):
            first = "{BLOCK_N} columns, {BLOCK_K} along K".format(**configs[0].kwargs)
            if fuzz.attempt(grouped.matmul, *operands(0, 1)) != f"RuntimeError('{first}')" or any(kept()):
                now.wrong.append(f"not the first error, or {kept()} plans, choices, files after it")
        for i, j in (0, 1), (0, 1), (2, 1), (1, 2):
            a, b = operands(i, j)
            c = grouped.matmul(a, b)
            if now.addresses != [x.data_ptr() for x in (a, b, c)]:
                now.wrong.append(f"operands {i}, {j}: a plan was launched on others")
        if kept() != (1, 1, 1):
            now.wrong.append(f"one size leaves {kept()} plans, choices, files")
        grouped.matmul(*operands(0, 1, skip=1))  # which launched() would note if they had shared that plan
        now.case = "a row far from the next"
        grouped.matmul(x.view(-1, 8)[:64, :1], x[0][:128].as_strided((1, 128), (2**40, 1)))
    return len(now.kernels), now.fits, now.wrong + [*now.broken.values()]


def prepare(folder):
    """In each process, once."""
    triton.knobs.cache.dir, triton.JITFunction.run = tempfile.mkdtemp(dir=folder), noted_run
    grouped.tuned_kernel.do_bench = lambda launch, quantiles: (launch(), [1.0])[1]
    warnings.filterwarnings("ignore", category=DeprecationWarning)


def main():
    """Print what was compiled and what is wrong with it; the exit status."""
    cards, failures, fits = sys.argv[1:] or [*CARDS], 0, set()
    spawn, cores = multiprocessing.get_context("spawn"), len(os.sched_getaffinity(0))
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with folder, concurrent.futures.ProcessPoolExecutor(cores, spawn, prepare, (folder.name,)) as pool:
        jobs = {"04 sm_90 tuning": pool.submit(tune)} | {
            f"{number} {card} {precision}": pool.submit(examine, number, card, precision)
            for number in reversed(fuzz.WRAPPERS) for card in cards for precision in DTYPES}
        for title, job in jobs.items():
            kernels, fit, wrong = job.result()
            failures, fits = failures + len(wrong), fits | fit
            print(f"{title}: {kernels} kernels", *wrong, sep="\n    FAILED ", flush=True)
    for config in {str(x) for x in grouped.CONFIGS} - fits:
        print("    FAILED no product is offered, or no card holds,", config)
        failures += 1
    print(f"{len(jobs)} combinations on Triton {triton.__version__}, {failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
