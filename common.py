"""Device set-up and TFLOPS arithmetic for a script that is run; without a GPU, Triton's interpreter."""
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
except ImportError as error:
    sys.exit(f"{error}: pip install {PACKAGES}")
if not __debug__:
    sys.exit("Run without -O and PYTHONOPTIMIZE, which drop the tests' assertions")

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
    card = torch.cuda.get_device_name()
    print(f"{card}, torch {torch.__version__}, Triton {triton.__version__}; curves: do_bench, 5, 50, 95 %")
    folder = pathlib.Path(__file__).parent / "results" / card.lower().replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
