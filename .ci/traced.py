"""04 in recorded programs: each holds the operator, and is exact on values that it was not recorded with.

Recorded by torch.export, torch.jit.trace, torch.compile without its own kernels, and make_fx, of which the
last also records a gradient. Plans for these sizes have been made before, and would be launched unseen.
Then the file is loaded again under its name, and that load broken: what the first gave out, these programs
and a graph for the backward pass, keeps its own operator.
"""
import warnings

import scripts
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

matmul = scripts.MODULES["04"].matmul
operator = scripts.MODULES["04"].matmul_op._qualname


class Product(torch.nn.Module):
    def forward(self, a, b):
        return matmul(a, b).neg()


class Picked(torch.nn.Module):
    """All columns of a and rows of b, but how many is known only when it runs."""
    def forward(self, a, b):
        return matmul(a[:, a[0] < 2], b[a[0] < 2]).neg()


def gradient(a, b):
    return torch.autograd.grad(matmul(a.requires_grad_(), b).sum(), a)[0]


def compiled(function, *operands):
    """The one graph that torch.compile makes of it."""
    graphs = []
    torch._dynamo.reset()
    torch.compile(function, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)(*operands)
    return graphs.pop()


def values(rows, columns):
    return torch.randint(-1, 2, (rows, columns), device=scripts.DEVICE).float()


warnings.simplefilter("ignore")  # torch.jit.trace is deprecated
a, b = values(5, 6), values(6, 7)
matmul(a, b), matmul(a.new_ones(5, 7), b.T)
programs = {
    "torch.export": torch.export.export(Product(), (a, b)).module(),
    "torch.export, sizes by values": torch.export.export(Picked(), (a, b)).module(),
    "torch.jit.trace": torch.jit.trace(Product(), (a, b)),
    "torch.compile": compiled(Product(), a, b),
    "make_fx ahead of dispatch": make_fx(Product(), pre_dispatch=True)(a, b),
} | {f"make_fx, {mode}": make_fx(Product(), tracing_mode=mode)(a, b) for mode in ("real", "fake", "symbolic")}
programs["make_fx of a gradient"] = make_fx(gradient)(a, b)
float8 = tuple(x.to(torch.float8_e4m3fn) for x in (a.detach(), b))
with FakeTensorMode() as mode:
    pretended = matmul(*map(mode.from_tensor, float8))
if pretended.dtype != matmul(*float8).dtype:
    raise AssertionError(f"float8 gives {pretended.dtype} when it is recorded")
pending = matmul(a.clone().requires_grad_(), b).sum()
scripts.load("04_autotune_grouped.py").multiply = None
pending.backward()
for name, program in programs.items():
    x, y = values(5, 6), values(6, 7)
    exact, calls = (-(x @ y), 1) if "gradient" not in name else (y.sum(1).expand(5, 6), 2)
    product = program(x, y)
    torch.testing.assert_close(product[0] if isinstance(product, tuple) else product, exact, rtol=0, atol=0)
    found = str(program.graph).replace(".", "::").count(operator)
    if found != calls:
        raise AssertionError(f"{name} has the operator {found} times, not {calls}: {program.graph}")
    print(f"{name}: exact on new values, the operator {calls} times")
