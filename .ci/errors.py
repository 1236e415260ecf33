"""Every refusal of the four wrappers: its exception, what its message shows, and that nothing comes first.

While a wrapper refuses, it may make no tensor, launch no kernel, and neither make nor use a plan. 04 has made
plans for good operands of the same sizes before. Cards of lower capability are pretended.
"""
import os
import re
import subprocess
import sys
import unittest.mock
import warnings

import scripts
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

FRESH = """
import importlib.util, os, torch
{}
import triton
{}
spec = importlib.util.spec_from_file_location("script", "{}")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.{}(torch.ones(4, 4), torch.ones(4, 4))
"""


class Launched(Exception):
    """A kernel was asked for, or a plan."""


LOOKS = torch.ops.aten.alias.default, torch.ops.aten.as_strided.default


class Watch(TorchDispatchMode):
    """Raises at the first operator that makes a tensor, but for a look at its tangent or its storage."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and operator not in LOOKS:
            raise Launched(f"{operator} ran")
        return result


class Subclass(torch.Tensor):
    pass


def watched(number):
    """The script's wrapper, with all that a refusal may not reach replaced by what raises Launched."""
    def product(a, b):
        with unittest.mock.patch.multiple(module, **traps), Watch():
            return scripts.PRODUCTS[number](a, b)

    module = scripts.MODULES[number]
    trap = unittest.mock.MagicMock(side_effect=Launched("a kernel or a plan was reached"))
    trap.__getitem__.side_effect = trap.side_effect
    traps = {name: trap for name, value in vars(module).items()
             if isinstance(value, scripts.triton.runtime.jit.KernelInterface) or name == "plan"}
    if number == "04":
        for dtype in {*scripts.DTYPES} & {torch.float16, torch.float32, e4m3}:
            module.matmul(x.to(dtype), x.to(dtype))
        traps["PLANS"] = {key: (trap, *sizes) for key, (_, *sizes) in module.PLANS.items()}
    return product


def on_card(capability, product, a, b):
    """The product as on a card of that compute capability, which is pretended, as is the card if need be."""
    with unittest.mock.patch.multiple(torch.Tensor, is_cuda=True), \
            unittest.mock.patch.multiple(torch.version, cuda="13.0"), \
            unittest.mock.patch.multiple(torch.cuda, get_device_capability=lambda *_: capability,
                                         is_bf16_supported=lambda *_: capability >= (8, 0)):
        return product(a, b)


def freed(left=0):
    """A 4 x 4 view, four elements into a storage of which so many bytes are left."""
    view = torch.ones(20, device=scripts.DEVICE)[4:].view(4, 4)
    view.untyped_storage().resize_(left)
    return view


def dual(product, *operands, which=0):
    with forward_ad.dual_level():
        return product(*(forward_ad.make_dual(x, x) if i == which else x for i, x in enumerate(operands)))


def fake(product, *operands, convert=True):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return product(*(map(mode.from_tensor, operands) if convert else operands))


def caught(number, call):
    """(type's name, message) of what the call raises.

    A tuple in place of the call holds what a fresh process does before and after it imports Triton.
    """
    if isinstance(call, tuple):
        script, wrapper = next(pair for pair in scripts.WRAPPERS.items() if pair[0].startswith(number))
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        code = FRESH.format(*call, scripts.ROOT / script, wrapper)
        done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True)
        return (done.stderr.splitlines() or ["nothing: "])[-1].split(": ", 1)
    try:
        return "nothing", f"{type(call(watched(number)))} returned"
    except Exception as error:
        return type(error).__name__, str(error)


x = torch.ones(4, 4, device=scripts.DEVICE)
one = x[:1, :1]
e4m3, e5m2 = scripts.FLOAT8
FIRST, ALL = ("01", "02", "03"), ("01", "02", "03", "04")
SET, UNSET = ('os.environ["TRITON_INTERPRET"] = "{}"'.format(value) for value in "10")
ROWS = [
    ("a list", ALL, "TypeError", "list", lambda f: f(x.tolist(), x)),
    ("None", ALL, "TypeError", "NoneType", lambda f: f(x, None)),
    ("a NumPy array", ALL, "TypeError", "ndarray", lambda f: f(x.cpu().numpy(), x)),
    ("sparse COO", ALL, "TypeError", "sparse_coo", lambda f: f(x.to_sparse(), x)),
    ("sparse CSR", ALL, "TypeError", "sparse_csr", lambda f: f(x, x.to_sparse_csr())),
    ("lazy negation", ALL, "TypeError", "negated", lambda f: f(torch._neg_view(x), x)),
    ("lazy negation, of b", ALL, "TypeError", "negated", lambda f: f(x, (x + 0j).conj().imag)),
    ("nested, jagged", ALL, "TypeError", "NestedTensor.*jagged",
     lambda f: f(torch.nested.nested_tensor([x, x], layout=torch.jagged), x)),
    ("nested, strided", ALL, "TypeError", "plain", lambda f: f(torch.nested.nested_tensor([x, x]), x)),
    ("a parameter without data", ALL, "TypeError", "UninitializedParameter",
     lambda f: f(torch.nn.UninitializedParameter(device=x.device), x)),
    ("a subclass", ALL, "TypeError", "Subclass", lambda f: f(x, x.as_subclass(Subclass))),
    ("0-D", ALL, "ValueError", r"\(\)", lambda f: f(x[0, 0], x)),
    ("1-D", ALL, "ValueError", r"\(4,\)", lambda f: f(x, x[0])),
    ("3-D", ALL, "ValueError", r"\(1, 4, 4\)", lambda f: f(x[None], x)),
    ("3-D, both", ALL, "ValueError", r"\(1, 4, 4\)", lambda f: f(x[None], x[None])),
    ("inner sizes", ALL, "ValueError", r"\(4, 3\).*\(4, 4\)", lambda f: f(x[:, :3], x)),
    ("inner sizes, empty", ALL, "ValueError", r"\(4, 0\).*\(4, 4\)", lambda f: f(x[:, :0], x)),
    ("float16 by float32", ALL, "TypeError", "float16.*float32", lambda f: f(x.half(), x)),
    ("float16 by bfloat16", ALL, "TypeError", "float16.*bfloat16", lambda f: f(x.half(), x.bfloat16())),
    ("int8 by float16", ALL, "TypeError", "int8.*float16", lambda f: f(x.char(), x.half())),
    *((str(dtype), ALL, "TypeError", str(dtype), lambda f, dtype=dtype: f(x.to(dtype), x.to(dtype)))
      for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.complex64,
                    torch.complex128, torch.float64, torch.float8_e4m3fnuz)),
    *((str(dtype), FIRST, "TypeError", str(dtype), lambda f, dtype=dtype: f(x.to(dtype), x.to(dtype)))
      for dtype in scripts.FLOAT8),
    ("quantized", ALL, "TypeError", "qint8",
     lambda f: f(torch.quantize_per_channel(x.cpu(), torch.ones(4), torch.zeros(4), 0, torch.qint8), x)),
    ("float8 by float16", ALL, "TypeError", "e4m3fn.*float16", lambda f: f(x.to(e4m3), x.half())),
    ("float32 by float8", ALL, "TypeError", "float32.*e5m2", lambda f: f(x, x.to(e5m2))),
    ("two devices", ALL, "ValueError", "meta", lambda f: f(x, x.to("meta"))),
    ("meta", ALL, "ValueError", "meta", lambda f: f(x.to("meta"), x.to("meta"))),
    ("M of 2**31 - 511", ALL, "ValueError", "2147483137", lambda f: f(one.expand(2**31 - 511, 1), one)),
    ("N of 2**31 - 511", ALL, "ValueError", "2147483137", lambda f: f(one, one.expand(1, 2**31 - 511))),
    ("K of 2**31", ALL, "ValueError", "2147483648", lambda f: f(one.expand(1, 2**31), one.expand(2**31, 1))),
    ("M * N of 2**31", ("01",), "ValueError", r"65536 \* 32768",
     lambda f: f(one.expand(65536, 1), one.expand(1, 32768))),
    ("a gradient", FIRST, "RuntimeError", "derivative", lambda f: f(x, x.clone().requires_grad_())),
    ("a parameter's gradient", FIRST, "RuntimeError", "derivative", lambda f: f(torch.nn.Parameter(x), x)),
    ("dual tensors", FIRST, "RuntimeError", "derivative", lambda f: dual(f, x, x)),
    *(("dual tensors", ("04",), "RuntimeError", "dual tensors", lambda f, i=i: dual(f, x, x, which=i))
      for i in (0, 1)),
    *(("dual tensors, of the operator", ("04",), "RuntimeError", "dual tensors",
       lambda f, i=i: dual(scripts.MODULES["04"].matmul_op, x, x, which=i)) for i in (0, 1)),
    ("torch.func.jvp, of the operator", ("04",), "RuntimeError", "torch.func",
     lambda f: torch.func.jvp(scripts.MODULES["04"].matmul_op, (x, x), (x, x))),
    ("torch.func.jvp in make_fx", ("04",), "RuntimeError", "torch.func",
     lambda f: make_fx(lambda a: torch.func.jvp(f, (a, a), (a, a)), tracing_mode="fake")(x)),
    ("torch.fx.symbolic_trace", ALL, "TypeError", "Proxy",
     lambda f: torch.fx.symbolic_trace(lambda a, b: f(a, b))),
    ("FakeTensorMode, dtypes", ("04",), "RuntimeError", "int64", lambda f: fake(f, x.long(), x.long())),
    ("FakeTensorMode, shapes", ("04",), "RuntimeError", r"\[4, 3\]", lambda f: fake(f, x[:, :3], x)),
    ("FakeTensorMode", FIRST, "RuntimeError", "FakeTensorMode", lambda f: fake(f, x, x)),
    ("FakeTensorMode, real operands", FIRST, "RuntimeError", "FakeTensorMode",
     lambda f: fake(f, x, x, convert=False)),
    ("make_fx ahead of dispatch", FIRST, "RuntimeError", "make_fx",
     lambda f: make_fx(f, pre_dispatch=True)(x, x)),
    ("make_fx", FIRST, "RuntimeError", "make_fx", lambda f: make_fx(f)(x, x)),
    ("torch.jit.trace", FIRST, "RuntimeError", "torch.jit.trace", lambda f: torch.jit.trace(f, (x, x))),
    ("torch.func.jvp", FIRST, "RuntimeError", "derivative", lambda f: torch.func.jvp(f, (x, x), (x, x))),
    ("torch.func.jvp", ("04",), "RuntimeError", "derivative|forward|functorch",
     lambda f: torch.func.jvp(f, (x, x), (x, x))),
    ("torch.func.grad", FIRST, "RuntimeError", "derivative",
     lambda f: torch.func.grad(lambda a: f(a, x).sum())(x)),
    ("torch.func.grad", ("04",), "RuntimeError", "derivative|functorch",
     lambda f: torch.func.grad(lambda a: f(a, x).sum())(x)),
    ("torch.func.vmap", ALL, "RuntimeError", "derivative",
     lambda f: torch.func.vmap(f, (0, None))(x[None], x)),
    ("float8's gradient", ("04",), "RuntimeError", "e4m3fn.*gradient",
     lambda f: f(x.to(e4m3), x.to(e4m3).requires_grad_())),
    *(("a storage freed or cut down", ALL, "RuntimeError", rf"\[4, 4\].*storage of size {left}",
       lambda f, left=left: f(freed(left), x)) for left in (0, 40, 76)),  # of 80
    *(("a storage freed or cut down, of b", ALL, "RuntimeError", rf"\[4, 4\].*storage of size {left}",
       lambda f, left=left: f(x, freed(left))) for left in (0, 40, 76)),
    ("a zero tensor", ALL, "TypeError", "plain",
     lambda f: f(x, torch._efficientzerotensor(4, 4, device=scripts.DEVICE))),
    ("bfloat16 on 7.5", ALL, "RuntimeError", r"bfloat16.*8\D*0",
     lambda f: on_card((7, 5), f, x.bfloat16(), x.bfloat16())),
    ("float8 on 8.6", ("04",), "RuntimeError", r"e4m3fn.*8\D*9.*8\D*6",
     lambda f: on_card((8, 6), f, x.to(e4m3), x.to(e5m2))),
    ("CPU, compiled", ALL, "ValueError", "TRITON_INTERPRET=1", ("", "")),
    ("interpreter on too late", ALL, "RuntimeError", "TRITON_INTERPRET.*before", ("", SET)),
    ("interpreter off too late", ALL, "RuntimeError", "TRITON_INTERPRET.*before", (SET, UNSET)),
]

warnings.simplefilter("ignore")  # nested and CSR tensors are betas
failures = 0
for name, numbers, error, words, call in ROWS:
    found = {number: caught(number, call) for number in numbers}
    wrong = {number: ": ".join(pair) for number, pair in found.items()
             if pair[0] != error or not re.search(words, pair[1], re.DOTALL)}
    failures += len(wrong)
    print(f"{' '.join(numbers)}, {name}: {error}" if not wrong else f"FAILED {name}: wants {error} {words!r}")
    for number, pair in wrong.items():
        print(f"    {number}: {' '.join(pair.split())[:300]}")
count = sum(len(row[1]) for row in ROWS)
print(f"{count} refusals in {len(ROWS)} rows, {failures} failed, on {scripts.DEVICE}")
sys.exit(failures > 0)
