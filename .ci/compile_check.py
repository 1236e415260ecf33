"""The four scripts compiled for ten cards, without a GPU: would the kernels that the wrappers choose run well?

Every wrapper is called on pretended cards, where kernels are compiled and loaded, but not launched.
- They compile, and fit the card's shared memory: of 04's configs one for each product (the tuner skips others),
  and each for some product. Blocks are powers of two from 16 up, tensor descriptors such as TMA takes.
- float16 and bfloat16 take the card's own tensor core instruction; none on sm_75.
- From float16 operands at multiples of 16 bytes 02 to 04 load 16 bytes at a time, 04 by TMA where there is one.
- 04 on the H200: a tuning that failed leaves nothing behind, a plan is launched on the operands at hand.
All of 04's configs are compiled on three cards, a sample on the others: compute capabilities that differ little,
and types that differ in their bits only, take turns at the layouts. Arguments: the cards, if not all.
"""
import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
import re
import sys
import tempfile
import types
import unittest.mock
import warnings

import torch

torch.cuda.is_available = lambda: True  # ahead of fuzz, which would turn the interpreter on
import fuzz
import triton
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor

CARDS = {  # compute capability, KiB of shared memory, instructions for tiles of 64 rows or more, and of 16
    "sm_90": ((9, 0), 227, "wgmma.mma_async", "mma.sync"),
    "sm_80": ((8, 0), 163, "mma.sync", "mma.sync"),
    "gfx942": ((9, 4), 64, "v_mfma", "v_mfma"),
    "sm_75": ((7, 5), 64, None, None),
    "sm_86": ((8, 6), 99, "mma.sync", "mma.sync"),
    "sm_89": ((8, 9), 99, "mma.sync", "mma.sync"),
    "sm_100": ((10, 0), 227, "tcgen05.mma", "mma.sync"),
    "sm_120": ((12, 0), 99, "mma.sync", "mma.sync"),
    "gfx950": ((9, 5), 160, "v_mfma", "v_mfma"),
    "gfx1100": ((11, 0), 64, "v_wmma", "v_wmma"),
}
CASES = [  # M, N, K, whether A and whether B is transposed
    (2048, 2048, 2048, False, True), (16, 256, 4096, False, False),
    (256, 512, 256, True, False), (2047, 2049, 2050, False, False),
]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "ieee": torch.float32, "tf32": torch.float32}
INSTRUCTION = re.compile(r"\b(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync|v_mfma|v_wmma)")
LOAD = re.compile(r"ld\.global[.:\w]*|cp\.async\.c[ag]\.[^;]*|cp\.async\.bulk\.tensor|(?:buffer|global)_load_\w+")
WIDE = re.compile(r"ld\.global\.v4\.b32|cp\.async.*, (?:0x10|16)\b|.*_load_(?:lds_)?(?:dwordx4|b128)")
jit_run, now = triton.JITFunction.run, types.SimpleNamespace()


def launched(*args):
    """In place of a launch: the addresses that it is passed, and what TMA would not take."""
    tensors = [getattr(x, "base", x) for x in args if isinstance(x, (torch.Tensor, TensorDescriptor))]
    now.addresses = [x.data_ptr() for x in tensors]
    for x in args:
        if isinstance(x, TensorDescriptor):
            pitch = x.strides[0] * x.base.itemsize
            if x.base.data_ptr() % 16 or pitch % 16 or pitch >= 2**40 or x.strides[1:] != [1]:
                now.wrong.append(f"{now.case}: TMA cannot read {x.shape}, strides {x.strides}")


def pretend(card):
    """Let torch and Triton see this card."""
    (major, minor), shared, *_ = CARDS[card]
    hip = card.startswith("gfx")
    target = GPUTarget("hip", card, 32 if major > 9 else 64) if hip else GPUTarget("cuda", 10 * major + minor, 32)
    properties = types.SimpleNamespace(
        major=major, minor=minor, name=card, gcnArchName=card, multi_processor_count=132)
    utils = types.SimpleNamespace(
        load_binary=lambda *args: (1, 2, 0, 0, 1024), unload_module=lambda *args: None,
        get_device_properties=lambda device: {"max_shared_mem": shared * 1024, "multiprocessor_count": 132})
    triton.runtime.driver.set_active(types.SimpleNamespace(
        utils=utils, launcher_cls=lambda source, metadata: launched,
        get_current_device=lambda: [*CARDS].index(card),  # by which Triton keeps kernels and properties
        get_current_stream=lambda device=None: 0, get_current_target=lambda: target,
        get_device_interface=lambda: torch.cuda))
    torch.version.cuda, torch.version.hip = (None, "7.0") if hip else ("13.0", None)
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_name = lambda device=None: card
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.device_of, torch.cuda.current_device = lambda x: contextlib.nullcontext(), lambda: None
    torch.Tensor.is_cuda = True


def noted_run(kernel, *args, **kwargs):
    """JITFunction.run, which notes what it compiles, and what is wrong with that."""
    meta = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    title = f"{now.case} {kernel.__name__} {dict((k, v) for k, v in meta.items() if k[:5] in ('BLOCK', 'PIECE'))}"
    now.wrong += [f"{title}: {name} is no block" for name, size in meta.items()
                  if name.startswith("BLOCK") and (size & (size - 1) or size < 16)]
    compiled = jit_run(kernel, *args, **kwargs)
    now.kernels.add(compiled.hash)
    if compiled.metadata.shared <= CARDS[now.card][1] * 1024:
        now.fits |= {str(x) for x in now.configs if {**kwargs, **x.all_kwargs()} == kwargs}
    if now.precision in ("float16", "bfloat16") and "PRECISION" in meta:  # which kernels with tl.dot have
        assembly = compiled.asm.get("ptx", "") + compiled.asm.get("amdgcn", "")
        wanted = {CARDS[now.card][3 if meta.get("BLOCK_M") == 16 else 2]} - {None}
        if {*INSTRUCTION.findall(assembly)} != wanted:
            now.wrong.append(f"{title}: {INSTRUCTION.findall(assembly)[:1]}, not {wanted}")
        loads = {*LOAD.findall(assembly)}
        narrow = [load for load in loads if not WIDE.match(load) and "bulk" not in load]
        if now.case != CASES[3] and (narrow or meta.get("TMA") and "cp.async.bulk.tensor" not in loads or not loads):
            now.wrong.append(f"{title}: {narrow[:3] or 'no wide'} loads")
    return compiled


def prepare(folder):
    """In each process, once."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    triton.knobs.cache.dir = tempfile.mkdtemp(dir=folder)
    fuzz.MODULES["04"].tuned_kernel.do_bench = lambda launch, quantiles: (launch(), [1.0])[1]
    triton.JITFunction.run = noted_run


def begin(card, precision):
    pretend(card)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    grouped = fuzz.MODULES["04"]
    vars(now).update(card=card, precision=precision, configs=grouped.CONFIGS, fits=set(), kernels=set(), wrong=[])
    grouped.PLANS.clear(), grouped.tuned_kernel.cache.clear()
    return grouped


def sample(configs, card, precision):
    """Of 04's configs those to compile: all, or the least, those of 16 rows, and some others in turn."""
    cost = lambda config: config.num_stages * config.kwargs["BLOCK_K"] * (
        config.kwargs["BLOCK_M"] * config.kwargs["PIECES"] + config.kwargs["BLOCK_N"])
    least = min(configs, key=cost), *[x for x in configs if x.kwargs["BLOCK_M"] == 16]
    turn, scalar = [*CARDS].index(card), precision == "ieee" or card == "sm_75"  # which is slow to compile
    if turn < 3 and precision == "float16":
        return configs
    return [x for i, x in enumerate(configs) if x in least or i % 5 == turn % 5 and not scalar]


def examine(number, card, precision):
    """One script, card and precision: how many kernels, the configs that fit, what is wrong."""
    grouped, turn = begin(card, precision), [*CARDS].index(card)
    for now.case in CASES if precision == "float16" and turn < 3 else [CASES[0], CASES[turn % 3 + 1]] \
            if precision == "float16" else [CASES[turn % 4]]:
        M, N, K, a_t, b_t = now.case
        a = torch.empty(K, M, dtype=DTYPES[precision]).T if a_t else torch.empty(M, K, dtype=DTYPES[precision])
        b = torch.empty(N, K, dtype=DTYPES[precision]).T if b_t else torch.empty(K, N, dtype=DTYPES[precision])
        configs = sample(grouped.CONFIGS, card, precision if now.case == CASES[0] else "bfloat16")
        with unittest.mock.patch.object(grouped.tuned_kernel, "configs", configs):
            try:
                fuzz.PRODUCTS[number](a, b)
            except Exception as error:
                now.wrong.append(f"{now.case}: {type(error).__name__}: {' '.join(str(error).split())[-200:]}")
    return len(now.kernels), now.fits, now.wrong


def tune():
    """04 on a pretended H200: a tuning that failed, one that did not, and what plans are launched with."""
    grouped = begin("sm_90", "float16")
    x = torch.empty(3, 2**14, dtype=torch.float16)
    operands = lambda i, j, skip=0: (x[i][skip:][:2**13].view(64, 128), x[j][:2**13].view(64, 128).T)
    files = lambda: [*pathlib.Path(triton.knobs.cache.dir).glob("*/*.autotune.json")]
    kept = lambda: (len(grouped.PLANS), len(grouped.tuned_kernel.cache), len(files()))
    now.case, configs, stored = "tuning", grouped.CONFIGS[:2], len(files())

    def fail(**kwargs):
        raise RuntimeError(f"no config of {kwargs['BLOCK_N']} columns, {kwargs['BLOCK_K']} along K")

    with unittest.mock.patch.object(grouped.tuned_kernel, "configs", configs):
        with unittest.mock.patch.object(grouped.described_kernel, "warmup", fail):
            try:
                grouped.matmul(*operands(0, 1))
            except RuntimeError as error:
                first = configs[0].kwargs
                if str(error) != f"no config of {first['BLOCK_N']} columns, {first['BLOCK_K']} along K":
                    now.wrong.append(f"not the first error: {error}")
        if kept() != (0, 0, stored):
            now.wrong.append(f"a tuning that failed leaves {kept()} plans, choices, files")
        for i, j in (0, 1), (0, 1), (2, 1), (1, 2):
            a, b = operands(i, j)
            c = grouped.matmul(a, b)
            if now.addresses != [a.data_ptr(), b.data_ptr(), c.data_ptr()]:
                now.wrong.append(f"operands {i}, {j}: a plan was launched on others")
        if kept() != (1, 1, stored + 1):
            now.wrong.append(f"one size leaves {kept()} plans, choices, files")
        grouped.matmul(*operands(0, 1, skip=1))
        if len(grouped.PLANS) != 2 or now.addresses[0] % 16:
            now.wrong.append("operands of another alignment share a plan")
        now.case = "a row far from the next"
        grouped.matmul(x[0][:128].as_strided((1, 128), (2**40, 1)), operands(0, 1)[1])
    return len(now.kernels), now.fits, now.wrong


def main():
    """Print what was compiled and what is wrong with it; the exit status."""
    cards, failures, fits = sys.argv[1:] or [*CARDS], 0, set()
    tasks = [(number, card, precision) for card in cards for number in reversed(fuzz.WRAPPERS)
             for precision in DTYPES if (number, precision) != ("01", "tf32")]
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    spawn, cores = multiprocessing.get_context("spawn"), len(os.sched_getaffinity(0))
    with folder, concurrent.futures.ProcessPoolExecutor(cores, spawn, prepare, (folder.name,)) as pool:
        jobs = {pool.submit(examine, *task): " ".join(task) for task in tasks} | {pool.submit(tune): "04 sm_90 tuning"}
        for job, title in jobs.items():
            kernels, fit, wrong = job.result()
            failures, fits = failures + len(wrong), fits | fit
            print(f"{title}: {kernels} kernels", *wrong, sep="\n    FAILED ", flush=True)
    idle = {str(config) for config in fuzz.MODULES["04"].CONFIGS} - fits
    print(*(f"    FAILED no product is offered, or nothing holds, {config}" for config in idle), sep="\n")
    print(f"{len(jobs)} combinations on Triton {triton.__version__}, {failures + len(idle)} failures")
    return min(failures + len(idle), 1)


if __name__ == "__main__":
    sys.exit(main())
