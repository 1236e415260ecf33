"""04 in recorded programs: each holds the operator, and is exact on values that it was not recorded with.

Recorded by torch.export, torch.jit.trace, torch.compile without its own kernels, and make_fx, of which the
last also records a gradient. Plans for these sizes have been made before, and would be launched unseen.
"""
import warnings

import scripts
import torch
from torch.fx.experimental.proxy_tensor import make_fx

matmul = scripts.MODULES["04"].matmul
operator = scripts.MODULES["04"].matmul_op._opoverload


class Product(torch.nn.Module):
    def forward(self, a, b):
        return matmul(a, b).neg()


def gradient(a, b):
    return torch.autograd.grad(matmul(a.requires_grad_(), b).sum(), a)[0]


def compiled(function, *operands):
    def backend(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    program = torch.compile(function, backend=backend, fullgraph=True)
    program(*operands)
    return program


def calls(graph):
    return sum(node.op == "call_function" and node.target == operator for node in graph.nodes)


def values(rows, columns):
    return torch.randint(-1, 2, (rows, columns), device=scripts.DEVICE).float()


warnings.simplefilter("ignore")  # torch.jit.trace is deprecated
graphs = []
a, b = values(5, 6), values(6, 7)
matmul(a, b), matmul(a.new_ones(5, 7), b.T)
programs = {
    "torch.export": torch.export.export(Product(), (a, b)).module(),
    "torch.jit.trace": torch.jit.trace(Product(), (a, b)),
    "torch.compile": compiled(Product(), a, b),
    "make_fx ahead of dispatch": make_fx(Product(), pre_dispatch=True)(a, b),
} | {f"make_fx, {mode}": make_fx(Product(), tracing_mode=mode)(a, b) for mode in ("real", "fake", "symbolic")}
for name, program in programs.items():
    x, y = values(5, 6), values(6, 7)
    torch.testing.assert_close(program(x, y), -(x @ y), rtol=0, atol=0)
    print(f"{name}: exact on new values")
    if isinstance(program, torch.fx.GraphModule) and calls(program.graph) != 1:
        raise AssertionError(f"{name}: {program.graph}")
program = make_fx(gradient)(a, b)
y = values(6, 7)
torch.testing.assert_close(program(a, y), y.sum(1).expand(5, 6), rtol=0, atol=0)
print("make_fx of a gradient: exact on new values")
