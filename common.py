"""Device set-up and TFLOPS arithmetic for a script that is run; without a GPU, Triton's interpreter."""
import os
import sys
from importlib.util import find_spec

if sys.version_info < (3, 10) or not __debug__:
    sys.exit(f"Need Python 3.10 or later, and no -O, which drops the tests: found {sys.version.split()[0]}")
if not all(map(find_spec, ("torch", "triton", "numpy"))):
    sys.exit("No torch, triton or numpy: use .venv/bin/python, which ./run_all.sh sets up")
import numpy
import torch

try:
    card = torch.cuda.get_device_name()
except (AssertionError, RuntimeError) as error:
    card = f"no GPU ({str(error).split('. ')[0]}, CUDA_VISIBLE_DEVICES={os.getenv('CUDA_VISIBLE_DEVICES')!r})"
    os.environ.setdefault("TRITON_INTERPRET", "1")
import triton

found = f"torch {torch.__version__} sees {card}, Triton {triton.__version__}, NumPy {numpy.__version__}"
version = {m: [int(number) for number in m.__version__.split(".")[:2]] for m in (torch, triton, numpy)}
old = version[torch] < [2, 10] or version[triton] < [3, 6]
if old or triton.knobs.runtime.interpret and version[triton] < [3, 7] and version[numpy] >= [2, 4]:
    sys.exit(f"Need torch >= 2.10, Triton >= 3.6 (>= 3.7 to interpret on NumPy >= 2.4): found {found}")
DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
if DEVICE == "cuda" and not torch.cuda.is_available():
    sys.exit(f"Unset TRITON_INTERPRET to run on the CPU: {found}")
print("CPU, under Triton's interpreter:" if DEVICE == "cpu" else "GPU:", found, flush=True)
torch.set_float32_matmul_precision("highest")  # an environment variable may have made it tf32


def tflops(M, N, K, ms):
    """Throughput in TFLOPS of an (M, K) @ (K, N) product that takes `ms` milliseconds."""
    return 2 * M * N * K / ms * 1e-9


def results():
    """The folder results/<card>/; a sentence and exit 2 where nothing can be measured."""
    if DEVICE == "cpu" or not all(map(find_spec, ("matplotlib", "pandas"))):
        print("A benchmark needs a GPU, matplotlib and pandas:", found, file=sys.stderr)
        sys.exit(2)
    folder = os.path.join(os.path.dirname(__file__), "results", card.lower().replace(" ", "-"))
    os.makedirs(folder, exist_ok=True)
    print("curves: do_bench, 5, 50, 95 %")
    return folder
