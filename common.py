"""Device set-up and TFLOPS arithmetic, imported by a script that is run, ahead of Triton.

Without a GPU it switches Triton's interpreter on, unless the user has set TRITON_INTERPRET.
"""
import importlib.util
import os
import pathlib
import sys

PACKAGES = "torch triton numpy matplotlib pandas tqdm"
try:
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    import triton
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is missing: pip install {PACKAGES}")

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
if DEVICE == "cuda" and not torch.cuda.is_available():
    sys.exit("There is no GPU and TRITON_INTERPRET turns the interpreter off: unset it to run on the CPU")


def tflops(M, N, K, ms):
    """Throughput in TFLOPS of an (M, K) @ (K, N) product that takes `ms` milliseconds."""
    return 2 * M * N * K / ms * 1e-9


def results():
    """The folder results/<card>/; a sentence and exit 2 where nothing can be measured."""
    missing = [name for name in PACKAGES.split() if not importlib.util.find_spec(name)]
    if DEVICE == "cpu" or missing:
        why = f"pip install {' '.join(missing)}" if missing else "the interpreter's timings mean nothing"
        print("No benchmark:", why, file=sys.stderr)
        sys.exit(2)
    card = torch.cuda.get_device_name().lower().replace(" ", "-")
    folder = pathlib.Path(__file__).parent / "results" / card
    folder.mkdir(parents=True, exist_ok=True)
    return folder
