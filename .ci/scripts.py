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


def load(script):
    spec = importlib.util.spec_from_file_location(f"script_{script[:2]}", ROOT / script)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = {script[:2]: load(script) for script in WRAPPERS}
PRODUCTS = {script[:2]: getattr(MODULES[script[:2]], wrapper) for script, wrapper in WRAPPERS.items()}
FLOAT8, CAPABILITIES = MODULES["04"].FLOAT8, MODULES["04"].CAPABILITIES
DTYPES = [dtype for dtype, needed in CAPABILITIES.items()
          if DEVICE == "cpu" or torch.cuda.get_device_capability() >= needed]
