"""04 compiled, without a GPU: on a pretended H200 kernels are compiled, tuned and planned, not launched.

Each config that the autotuner offers is compiled for sm_90. Operands of one shape in several layouts follow
each other, so that a plan or a tuned config which one of them cannot take would show. Each plan is launched
again on the same addresses, on others, and on another stream: Triton's function in C, replaced here, must be
passed just those, as such or in tensor maps; and Triton's launch hooks, where there are any. What is kept of
plans and addresses is dropped at 10,000.
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
import triton.backends.nvidia.driver as nvidia
from triton.backends.compiler import GPUTarget

launches, stream = [], 0


def launch_in_c(*args):
    """In place of Triton's function in C: keeps all that it is passed, which from Triton 3.7 on is nested."""
    launches.append([*args[:-1], *args[-1]] if isinstance(args[-1], (list, tuple)) else [*args])


class Launcher(nvidia.CudaLauncher):
    def __init__(self, src, metadata):
        self.launch = nvidia.wrap_handle_tensordesc(
            launch_in_c, dict(src.signature), getattr(metadata, "tensordesc_meta", None))
        self.num_ctas, self.launch_cooperative_grid, self.launch_pdl = 1, False, False
        self.gsan_enabled, self.arg_annotations, self.kernel_signature = False, None, None
        self.global_scratch_size = self.profile_scratch_size = 0
        self.global_scratch_align = self.profile_scratch_align = 1


Launcher.__module__ = nvidia.__name__


class Utils:
    @staticmethod
    def fill_tma_descriptor(address, *layout):
        return "tensor map of", address

    fill_tma_descriptor_tiled = fill_tma_descriptor

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
    get_current_stream=lambda device=None: stream,
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

BUFFERS = torch.empty(4, 2**23, dtype=torch.uint8)


def laid_out(layout, rows, columns, buffer, dtype):
    """Always at the same address: contiguous, transposed, cut out, expanded."""
    x = BUFFERS[buffer].view(dtype)
    strides = (columns, 1), (1, rows), (columns + 9, 1), (0, 1)
    return x.as_strided((rows, columns), strides[layout], x.storage_offset() + 5 * (layout == 2))


CASES = [
    (1, 256, 4096, torch.float16, "ieee"), (256, 256, 256, torch.bfloat16, "ieee"),
    (5, 7, 9, torch.float32, "ieee"), (300, 200, 500, torch.float8_e5m2, "ieee"),
    (600, 640, 600, torch.float16, "ieee"), (600, 640, 600, torch.float32, "ieee"),
    (1030, 1040, 1050, torch.float16, "ieee"), (1030, 1040, 1050, torch.float32, "tf32"),
    (1030, 1040, 1050, torch.float8_e4m3fn, "ieee"),
]
for M, N, K, dtype, precision in CASES:
    for layout_a, layout_b in itertools.product(range(4), range(4)):
        launch = None
        for buffer_a, buffer_b, stream in (0, 1, 101), (0, 1, 101), (2, 1, 101), (2, 3, 101), (2, 3, 102):
            a = laid_out(layout_a, M, K, buffer_a, dtype)
            b = laid_out(layout_b, K, N, buffer_b, dtype)
            launch = launch or grouped.plan(a, b, precision)
            launches.clear()
            c = launch(a, b)
            copied = min(M, N, K) >= grouped.LARGE
            expected = {stream, M, N, K, c.data_ptr()} | (set() if copied else {a.data_ptr(), b.data_ptr()})
            passed = {x[1] if isinstance(x, tuple) and x[0] == "tensor map of" else x for x in launches[-1]}
            if c.shape != (M, N) or not c.is_contiguous() or not expected <= passed:
                raise AssertionError((M, N, K, dtype, precision, a.stride(), b.stride(), expected, passed))
    print(f"{M}x{N}x{K} {dtype} {precision}: planned and launched in every layout")
for hook in triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook:
    hook.add(print)
    launch(a, b)
    if hook not in launches[-1]:
        raise AssertionError("a launch hook is passed over")
    hook.remove(print)
torch.Tensor.is_cuda = True
x, y = (BUFFERS[0].view(torch.float32)[offset:][:64 * 64].view(64, 64) for offset in (0, 1))
for a, b, precision in (x, x, "highest"), (y, x, "highest"), (x, y, "highest"), (x, x, "high"):
    torch.set_float32_matmul_precision(precision)
    grouped.multiply(a, b)
if len(grouped.PLANS) != 4:
    raise AssertionError("operands of different alignment, or precisions, share a plan")
for kept in grouped.PLANS, grouped.RECORDS:
    kept.update(dict.fromkeys(range(10_000)))
grouped.multiply(x[:32], x)
if (len(grouped.PLANS), len(grouped.RECORDS)) != (1, 1):
    raise AssertionError("more than 10,000 plans or records are kept")
print("64x64: four plans for alignments and tf32; launch hooks passed on; 10,000 plans and records dropped")
