"""The four scripts loaded by path: MODULES["04"], its wrapper PRODUCTS["04"], the DEVICE for its operands.

To be imported ahead of Triton: where there is no GPU it turns Triton's interpreter on.
"""
import importlib.util
import os
import pathlib
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
import triton

ROOT = pathlib.Path(__file__).parents[1]
WRAPPERS = {
    "01_naive.py": "naive_matmul",
    "02_block_matmul.py": "block_matmul",
    "03_coalesced.py": "coalesced_block_matmul",
    "04_autotune_grouped.py": "matmul",
}
DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
FLOAT8 = torch.float8_e4m3fn, torch.float8_e5m2


def load(script):
    spec = importlib.util.spec_from_file_location(f"script_{script[:2]}", ROOT / script)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def supports(dtype):
    """Whether this device multiplies it: in the interpreter all, on a GPU from a compute capability on."""
    needed = {torch.bfloat16: (8, 0)} | dict.fromkeys(FLOAT8, (8, 9))
    return DEVICE == "cpu" or torch.cuda.get_device_capability() >= needed.get(dtype, (7, 0))


MODULES = {script[:2]: load(script) for script in WRAPPERS}
PRODUCTS = {script[:2]: getattr(MODULES[script[:2]], wrapper) for script, wrapper in WRAPPERS.items()}
DTYPES = [dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, *FLOAT8) if supports(dtype)]
