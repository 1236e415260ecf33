"""The four scripts compiled for eight cards, without a GPU: would the kernels that the wrappers choose run?

Every wrapper is called on pretended cards, where kernels are compiled and loaded, but not launched: in each
dtype; thin, small, large; contiguous, transposed; sizes and strides multiples of 16 or not.
- It refuses the dtypes that the card lacks, and no others.
- Its kernels fit the card's shared memory. Of the configs that 04's tuner is offered for a product one must
  fit (it skips the others), and each of CONFIGS is offered, and fits, somewhere.
- Blocks are powers of two from 16 up, along K in 8-bit types from 32 up.
- float16 and bfloat16 take the card's own tensor core instruction, tf32 and float8 any; none on sm_75, where
  Triton multiplies 16-bit types without tensor cores and spills what it likes.
- Local memory a thread: at most SPILL bytes, in 04 for the leanest of a product's configs.
"""
import concurrent.futures
import contextlib
import importlib.util
import io
import multiprocessing
import os
import pathlib
import re
import sys
import tempfile
import threading
import types
import warnings

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.errors import OutOfResources

CARDS = {  # compute capability, KiB of shared memory, instructions for tiles of 16 rows and for higher ones
    "sm_100": ((10, 0), 227, "mma.sync", "tcgen05.mma"),
    "sm_90": ((9, 0), 227, "mma.sync", "wgmma.mma_async"),
    "sm_120": ((12, 0), 99, "mma.sync", "mma.sync"),
    "sm_89": ((8, 9), 99, "mma.sync", "mma.sync"),
    "sm_86": ((8, 6), 99, "mma.sync", "mma.sync"),
    "sm_80": ((8, 0), 163, "mma.sync", "mma.sync"),
    "sm_75": ((7, 5), 64, None, None),
    "gfx942": ((9, 4), 64, "v_mfma", "v_mfma"),
}
# A thread's 255 registers hold 1 KiB; with more than that in local memory most of its values live there.
SPILL = {"01": 0, "02": 1024, "03": 1024, "04": 1024}
WRAPPERS = {"04_autotune_grouped": "matmul", "03_coalesced": "coalesced_block_matmul",
            "02_block_matmul": "block_matmul", "01_naive": "naive_matmul"}
CASES = [  # M, N, K, whether A and whether B is transposed
    (1, 256, 4096, False, False), (256, 256, 256, False, False), (2048, 2048, 2048, True, False),
    (1, 255, 4095, False, False), (255, 255, 255, False, True), (2047, 2048, 2048, True, True),
]
DTYPES = {  # and the number of cases: fewer where another type differs in its bits only
    "float16": (torch.float16, 5), "bfloat16": (torch.bfloat16, 3),
    "float32": (torch.float32, 4), "tf32": (torch.float32, 4),
    "float8_e4m3fn": (torch.float8_e4m3fn, 4), "float8_e5m2": (torch.float8_e5m2, 3),
}
jit_run, scripts, local_bytes, lock = triton.JITFunction.run, {}, {}, threading.Lock()
now = types.SimpleNamespace()  # what is being examined, by noted_run


def set_up(folder):
    """In each process, once."""
    warnings.simplefilter("ignore")
    triton.knobs.cache.dir, triton.knobs.nvidia.dump_ptxas_log = tempfile.mkdtemp(dir=folder), True
    for name in WRAPPERS:
        spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).parents[1] / f"{name}.py")
        scripts[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(scripts[name])
        tuner = getattr(scripts[name], "tuned_kernel", types.SimpleNamespace())
        tuner._do_bench = lambda launch, quantiles: (launch(), [1.0])[1]
    triton.JITFunction.run = noted_run


def pretend(card):
    """Let torch and Triton see this card."""
    (major, minor), shared, *_ = CARDS[card]
    hip = card.startswith("gfx")
    target = GPUTarget("hip", card, 64) if hip else GPUTarget("cuda", 10 * major + minor, 32)
    utils = types.SimpleNamespace(
        load_binary=lambda *arguments: (1, 2, 0, 0, 1024), unload_module=lambda *arguments: None,
        get_device_properties=lambda device: {"max_shared_mem": shared * 1024, "multiprocessor_count": 132})
    triton.runtime.driver.set_active(types.SimpleNamespace(
        utils=utils, launcher_cls=lambda source, metadata: lambda *arguments: None,
        get_current_device=lambda: [*CARDS].index(card),  # by which Triton keeps kernels and properties
        get_current_stream=lambda device=None: 0, get_current_target=lambda: target,
        get_device_interface=lambda: torch.cuda))
    properties = types.SimpleNamespace(major=major, minor=minor, name=card, multi_processor_count=132)
    torch.version.cuda, torch.version.hip = (None, "7.0") if hip else ("13.0", None)
    torch.cuda.is_available, torch.cuda.is_current_stream_capturing = lambda: True, lambda: False
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_name = lambda device=None: card
    torch.cuda.current_device, torch.cuda.device_of = lambda: None, lambda x: contextlib.nullcontext()
    torch.Tensor.is_cuda = True


def noted_run(kernel, *args, **kwargs):
    """JITFunction.run, which notes what it compiles, and what is wrong with that."""
    meta, itemsize = dict(zip(kernel.arg_names, args, strict=False)) | kwargs, now.dtype.itemsize
    config = next((str(x) for x in now.configs if x.all_kwargs().items() <= kwargs.items()), None)
    blocks = {name: size for name, size in meta.items() if name.startswith("BLOCK")}
    if "BYTES_K" in meta:
        blocks["BLOCK_K"] = meta["BYTES_K"] // itemsize
    title = f"{now.case} {kernel.__name__} {config or blocks}"
    for name, size in blocks.items():
        if size & (size - 1) or size < (32 if itemsize == 1 and name == "BLOCK_K" else 16):
            now.wrong.append(f"{title}: {name} is {size}")
    note = types.SimpleNamespace(case=now.case, config=config, fits=False)
    now.notes[now.case, kernel, config] = note
    try:
        with lock, contextlib.redirect_stdout(io.StringIO()) as log:  # 04 compiles in threads
            compiled = jit_run(kernel, *args, **kwargs)
    except OutOfResources:
        raise
    except Exception as error:  # of these, too, 04's tuner skips some
        now.wrong.append(f"{title}: {type(error).__name__}: {error}")
        raise
    ptx, hip = compiled.asm.get("ptx", ""), compiled.asm.get("amdgcn", "")
    local = re.findall(r"(\d+) bytes stack frame", log.getvalue()) + re.findall(r"ScratchSize: (\d+)", hip)
    note.local = local_bytes.setdefault(compiled.hash, max(map(int, local), default=None))
    note.fits, note.shared = not kwargs["warmup"], compiled.metadata.shared / 1024
    note.mma = sorted(set(re.findall(r"\b(wgmma\.mma_async|tcgen05\.mma|mma\.sync|v_mfma)", ptx + hip)))
    wanted = CARDS[now.card][2 if meta.get("BLOCK_M") == 16 else 3]
    if wanted and now.precision != "float32" and "PRECISION" in meta:  # which kernels with tl.dot have
        if not note.mma or now.precision in ("float16", "bfloat16") and note.mma != [wanted]:
            now.wrong.append(f"{title}: {note.mma}, not {wanted}")
    return compiled


def examine(name, card, precision):
    """One script, card and dtype: the table's line, the configs that fit no product, what is wrong."""
    pretend(card)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    script, tuned, (dtype, cases) = scripts[name], scripts["04_autotune_grouped"], DTYPES[precision]
    vars(now).update(card=card, precision=precision, dtype=dtype, configs=tuned.CONFIGS, notes={}, wrong=[])
    lacks = CARDS[card][0] < tuned.CAPABILITIES[dtype]
    tuned.PLANS.clear()
    for now.case in CASES[:cases]:
        M, N, K, a_t, b_t = now.case
        a = torch.empty(K, M, dtype=dtype).T if a_t else torch.empty(M, K, dtype=dtype)
        b = torch.empty(N, K, dtype=dtype).T if b_t else torch.empty(K, N, dtype=dtype)
        refused = False
        try:
            getattr(script, WRAPPERS[name])(a, b)
        except Exception as error:
            refused = "compute capability" in str(error)
            now.wrong += [] if refused else [f"{now.case}: {type(error).__name__}: {error}"]
        if refused != lacks:
            now.wrong.append(f"{now.case}: {'refused' if refused else 'not refused'}")
    fits, leanest = [note for note in now.notes.values() if note.fits], {}
    for note in fits:
        if script is not tuned or note.config:
            leanest[note.case] = min(note.local, leanest.get(note.case, note.local))
    for case, local in leanest.items():
        if local > SPILL[name[:2]] and not (card == "sm_75" and dtype.itemsize < 4):
            now.wrong.append(f"{case}: {local} bytes of local memory a thread")
    columns = ["refused" if lacks else f"0 of {len(now.notes)}"]
    if fits:
        columns = [f"{len(fits)} of {len(now.notes)}", f"{max(note.shared for note in fits):.1f}",
                   " ".join(sorted({instruction for note in fits for instruction in note.mma})) or "-",
                   f"{max(leanest.values(), default='-')} / {max(note.local for note in fits)}"]
    unused = {str(config) for config in tuned.CONFIGS} - {note.config for note in fits}
    return [card, name[:2], precision, *columns], unused, list(dict.fromkeys(now.wrong))


def main():
    """Print the table, of all cards or of those named as arguments; the exit status."""
    cards = sys.argv[1:] or CARDS
    tasks = [(name, card, precision) for name in WRAPPERS for card in cards for precision in DTYPES
             if name[:2] == "04" or "float8" not in precision and (name[:2], precision) != ("01", "tf32")]
    form, unused, failures = "{:6} {:6} {:13} {:8} {:5} {:24} {}", [], 0
    print(form.format("card", "script", "dtype", "fit", "KiB", "tensor cores", "local bytes: leanest / most"))
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    spawn, cores = multiprocessing.get_context("spawn"), len(os.sched_getaffinity(0))
    with folder, concurrent.futures.ProcessPoolExecutor(cores, spawn, set_up, (folder.name,)) as pool:
        for columns, idle, wrong in pool.map(examine, *zip(*tasks, strict=True)):
            line = form.format(*columns, *[""] * (7 - len(columns))).rstrip()
            print(line, *wrong, sep="\n    FAILED ", flush=True)
            unused.append(idle)
            failures += len(wrong)
    for config in set.intersection(*unused):
        print("    FAILED nothing was offered, or fits,", config)
        failures += 1
    print(f"{len(tasks)} combinations on Triton {triton.__version__}, {failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
