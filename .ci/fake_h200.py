"""04 compiled, without a GPU: on a pretended H200 kernels are compiled, tuned and planned, not launched.

Each config that the autotuner offers is compiled for sm_90. Operands of one shape in several layouts follow
each other, so that a plan or a tuned config which one of them cannot take would show.
"""
import contextlib
import importlib.util
import itertools
import os
import pathlib
import tempfile
import types

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
import torch
import triton
from triton.backends.compiler import GPUTarget

launches = []


class Launcher:
    def __init__(self, src, metadata):
        self.arguments = len(src.fn.arg_names)

    def __call__(self, grid_x, grid_y, grid_z, *rest):
        assert len(rest) == 6 + self.arguments, "a launch with other arguments than the kernel has"
        launches.append(grid_x * grid_y * grid_z)


class Utils:
    def load_binary(self, name, kernel, shared, device):
        return 1, 2, 0, 0, 1024

    def unload_module(self, *arguments):
        pass

    def get_device_properties(self, device):
        return {"max_shared_mem": 227 * 1024, "multiprocessor_count": 132}


driver = types.SimpleNamespace(
    utils=Utils(),
    launcher_cls=Launcher,
    get_current_device=lambda: 0,
    get_current_stream=lambda device=None: 0,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_device_interface=lambda: torch.cuda,
)
triton.runtime.driver.set_active(driver)
torch.version.cuda = "13.0"
torch.cuda.get_device_capability = lambda device=None: (9, 0)
torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
    multi_processor_count=132, name="H200")
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.current_device = lambda: None
torch.cuda.device_of = lambda x: contextlib.nullcontext()

path = pathlib.Path(__file__).parents[1] / "04_autotune_grouped.py"
spec = importlib.util.spec_from_file_location("grouped", path)
grouped = importlib.util.module_from_spec(spec)
spec.loader.exec_module(grouped)
count = itertools.count()
grouped.tuned_kernel._do_bench = lambda launch, quantiles: (launch(), [-next(count)])[1]  # the last one wins

LAYOUTS = [
    lambda rows, columns, dtype: torch.empty(rows, columns, dtype=dtype),
    lambda rows, columns, dtype: torch.empty(columns, rows, dtype=dtype).T,
    lambda rows, columns, dtype: torch.empty(rows + 9, columns + 9, dtype=dtype)[3:-6, 5:-4],
    lambda rows, columns, dtype: torch.empty(1, columns, dtype=dtype).expand(rows, columns),
]
CASES = [
    (1, 256, 4096, torch.float16, "ieee"), (256, 256, 256, torch.bfloat16, "ieee"),
    (5, 7, 9, torch.float32, "ieee"), (300, 200, 500, torch.float8_e5m2, "ieee"),
    (600, 640, 600, torch.float16, "ieee"), (600, 640, 600, torch.float32, "ieee"),
    (1030, 1040, 1050, torch.float16, "ieee"), (1030, 1040, 1050, torch.float32, "tf32"),
    (1030, 1040, 1050, torch.float8_e4m3fn, "ieee"),
]
for M, N, K, dtype, precision in CASES:
    for layout_a, layout_b in itertools.product(LAYOUTS, LAYOUTS):
        a, b = layout_a(M, K, dtype), layout_b(K, N, dtype)
        launch = grouped.plan(a, b, precision)
        launches.clear()
        c = launch(a, b)
        if c.shape != (M, N) or not c.is_contiguous() or not launches:
            raise AssertionError((M, N, K, dtype, precision, a.stride(), b.stride(), launches))
    print(f"{M}x{N}x{K} {dtype} {precision}: planned and launched in every layout")
