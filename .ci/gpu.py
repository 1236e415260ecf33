"""What needs a GPU: streams, threads, graphs, torch.compile, gradients, the tuner, memory, the sanitizer.

Each case is a process of its own, with 500 seconds at the most. Values are from {-1, 0, 1}, in tf32() not,
and compared bit for bit; «all» are 01 to 04. Arguments: cases, such as "streams()" or memcheck, if not all.
"""
import concurrent.futures
import contextlib
import importlib
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from functools import partial
from unittest.mock import patch

import fuzz
import torch
import triton
from fuzz import PRODUCTS
from triton.runtime.errors import OutOfResources

grouped, matmul = fuzz.MODULES["04"], PRODUCTS["04"]
same = partial(torch.testing.assert_close, rtol=0, atol=0)


def ints(*shape, dtype=torch.float16, device="cuda"):
    return torch.randint(-1, 2, shape, device=device).to(dtype)


def cut(rows, columns, **kind):
    """A view whose rows are no multiple of 16 bytes apart, in the midst of NaN."""
    return torch.nn.functional.pad(ints(rows, columns, **kind), (5, 4, 3, 6), value=torch.nan)[3:-6, 5:-4]


def reference(a, b):
    return (a.double() @ b.double()).to(a.dtype)  # rounded once; torch differentiates it


def exact(product, a, b):
    found = fuzz.attempt(product, a, b)
    assert not found, found


def sweep():
    """Random layouts through all, compared on the CPU; 04 takes three configs by lot and tunes nothing."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills C with NaN: initcheck is blind to TMA
    for case, dtype in enumerate(fuzz.DTYPES * 4):
        rng = fuzz.random.Random(case)
        precision, (M, N, K) = rng.choice(("high", "highest")), [rng.randint(1, 200) for _ in "MNK"]
        torch.set_float32_matmul_precision(precision)
        N = N // 8 * 8 + 8 if case % 2 else N  # what a persistent config takes
        a, b = (fuzz.place(ints(*shape, device="cpu"), dtype, *fuzz.draw_layout(rng, *shape))
                for shape in ((M, K), (K, N)))
        wanted = reference(a.cpu(), b.cpu())
        for number in "01", "02", "03":
            same(PRODUCTS[number](a, b).cpu(), wanted)
        for _ in range(3):
            same(fuzz.any_config(rng, False, N, dtype.itemsize)(a, b).cpu(), wanted)


class Net(torch.nn.Module):
    def forward(self, x, v, w, product=matmul):
        return product(product(x, v).relu(), w.T) + 1


def streams():
    """all: first called, and 04 tuned, on a side stream; then operands made late on two"""
    for product in PRODUCTS.values():
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(10**8)  # some 50 ms
            a, b = ints(200, 144), ints(144, 272)
            exact(product, a, b)
        late, results = [(torch.cuda.Stream(), a * torch.nan, b * torch.nan) for _ in range(2)], []
        torch.cuda.synchronize()
        for side, x, y in late:
            with torch.cuda.stream(side):
                torch.cuda._sleep(10**8)
                results.append(product(x.copy_(a), y.copy_(b)))
        assert not late[-1][0].query(), "the call waited for the GPU"
        torch.cuda.synchronize()
        same(results, [reference(a, b)] * 2)


def threads():
    """eight, first calls included"""
    shared = [(ints(33, 64), ints(64, 64)), (ints(1, 999), ints(999, 999)), [cut(999, 999)] * 2]
    barrier = threading.Barrier(8, timeout=60)

    def work(i):
        pairs = [(ints(65 + i, 64), ints(64, 128)), (ints(128 + i, 1024), ints(1024, 1024)), *shared]
        barrier.wait()
        for a, b, c in [(a, b, matmul(a, b)) for a, b in (pairs[i % 5:] + pairs[:i % 5]) * 20]:
            same(c, reference(a, b))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def graphs():
    """all, copies too: replayed on new values; a first call in a capture raises"""
    pairs = [(ints(200, 72), ints(72, 136)), (cut(130, 72), ints(137, 72).T), (cut(260, 99), cut(99, 77))]
    with unittest.TestCase().assertRaises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        matmul(*pairs[0])
    for product, (a, b) in itertools.product(PRODUCTS.values(), pairs):
        exact(product, a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = product(a, b)
        for _ in range(3):
            wanted = reference(a.copy_(ints(*a.shape)), b.copy_(ints(*b.shape)))
            c.fill_(torch.nan)
            graph.replay()
            same(c, wanted)


def compiled(dtype):
    """fullgraph and eager: views, two layers, their gradients; torch.export: two operators"""
    some, net = partial(ints, dtype=dtype), Net()
    ours, weights = torch.compile(net, fullgraph=True), (some(24, 40), some(17, 40))
    for x in some(64, 24), some(24, 999).T, cut(129, 24, dtype=dtype):
        grad, found = some(len(x), 17), []
        for function in ours, net, partial(net, product=reference):
            leaves = [leaf.detach().requires_grad_() for leaf in (x, *weights)]
            c = function(*leaves)
            found.append((c.detach(), function(x, *weights), *torch.autograd.grad(c, leaves, grad)))
        same(found[:2], found[2:] * 2)
    program = torch.export.export(net, (x, *weights)).module()
    same(program(-x, *weights), net(-x, *weights, product=reference))
    operator = grouped.matmul_op._qualname.replace("::", ".")
    assert str(program.graph).count(operator) == 2, program.graph


def two_gpus():
    """all, with either one current"""
    for current, device in itertools.product((0, 1), ("cuda:0", "cuda:1")):
        torch.cuda.set_device(current)
        for product, make in itertools.product(PRODUCTS.values(), (ints, cut) * 2):
            exact(product, make(99, 72, device=device), make(72, 99, device=device))
            assert torch.cuda.current_device() == current


def tunings():
    """7 for M = 1..64, and plans keep no memory"""
    b, memory = ints(1024, 1024), []
    for M in [*range(1, 65)] * 2:
        exact(matmul, b[:M], b)
        memory.append(torch.cuda.memory_allocated())
    assert (len(grouped.tuned_kernel.cache), len(set(memory))) == (7, 1), memory


def descriptors():
    """each config that fits, as operands lie and transposed, with descriptors made in the kernel"""
    a, b, asked = ints(4000, 136), ints(136, 1040), []
    triton.set_allocator(lambda size, *_: asked.append(size) or a.new_empty(size, dtype=torch.int8))
    triton.runtime.driver.active.get_current_target()  # compile for this card, whatever 04 takes it for
    turned = a.T.contiguous().T, b.T.contiguous().T
    for config, (x, y) in itertools.product(grouped.CONFIGS, ((a, b), turned)):
        grouped.PLANS.clear()
        with patch.object(torch.version, "hip", "6"), contextlib.suppress(OutOfResources):
            with patch.object(grouped.tuned_kernel, "configs", [config]):
                same(matmul(x, y), reference(x, y))
    assert len(asked) > len(grouped.CONFIGS), "few configs fit, or 04 made them on the host"


def tf32():
    """01 is always ieee, 02 to 04 obey the switch"""
    a, eye = torch.full((32, 32), 1 + 2**-12, device="cuda"), torch.eye(32, device="cuda")
    for precision, (name, product) in itertools.product(("highest", "high", "highest"), PRODUCTS.items()):
        torch.set_float32_matmul_precision(precision)
        same(product(a, eye), a.round() if precision == "high" and name != "01" else a)


def epilogue():
    """a bias and a ReLU by the obvious edit of 04's text: right for each bias, whatever the config"""
    text, x = pathlib.Path(grouped.__file__).read_text(), ints(300) * 2
    edited = re.sub(r"(def matmul_kernel\(\n    a, b, c,.*\n)", r"\1    bias_ptr,\n", text)
    edited = re.sub(
        r"(( +)# An epilogue goes here.*\n)", r"\1\2acc += tl.load(bias_ptr + offs_n, offs_n < N, 0.0)\n"
        r"\2acc = tl.maximum(acc, 0.0)\n", edited)
    with tempfile.TemporaryDirectory() as folder, patch.object(sys, "path", [folder, *sys.path]):
        pathlib.Path(folder, "biased.py").write_text(edited)
        biased, a, b = importlib.import_module("biased"), ints(200, 144), ints(144, 272)
    persistent = [config for config in biased.CONFIGS if config.kwargs["PERSISTENT"]]
    for configs in biased.CONFIGS, biased.CONFIGS[:1], *([config] for config in persistent):
        biased.PLANS.clear()
        with patch.object(biased.tuned_kernel, "configs", configs):
            for bias in (x[:272], x[8:280], x[1:273]) * 2:  # the last is off by 2 bytes
                wanted = (a.double() @ b.double() + bias).relu().half()
                same(biased.matmul(a, b, bias_ptr=bias), wanted)


TOOLS = "memcheck", "racecheck", "initcheck"  # of a sweep, by compute-sanitizer
CALLS = [*TOOLS, *(f"compiled(torch.{kind})" for kind in ("float16", "bfloat16", "float32")), "descriptors()",
         "epilogue()", "streams()", "threads()", "graphs()", "tunings()", "tf32()"]
CALLS += ["two_gpus()"] if torch.cuda.device_count() > 1 else []


def run(call):
    """Prints how it went; whether it passed."""
    tool, env = call if call in TOOLS else "", os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    options = f"compute-sanitizer --tool {tool} --target-processes application-only --error-exitcode 9"
    command = ["timeout", "-s", "ABRT", "500", *(options.split() if tool else []), sys.executable]
    command += ["-X", "faulthandler", "-c", f"import gpu, torch; gpu.{'sweep()' if tool else call}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=env if tool else None, cwd=pathlib.Path(__file__).parent)
    clean = not done.returncode and (not tool or re.search("SUMMARY: 0 (errors|hazards)", done.stdout))
    print(f"{call}: {'passed' if clean else 'failed: ' + done.stdout[-6000:]}", flush=True)
    return clean


if __name__ == "__main__":
    if fuzz.SMALL:
        sys.exit("There is no GPU, or the interpreter is on")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        passed = [*map(bool, pool.map(run, sys.argv[1:] or CALLS))]  # the longest first
    skipped = "" if "two_gpus()" in CALLS else " (two_gpus() skipped: there is one)"
    print(f"{sum(passed)} passed, {passed.count(False)} failed{skipped}")
    sys.exit(not all(passed))
