"""The wrappers in company, on a GPU: streams, threads, graphs, torch.compile, autograd, GPUs, processes.

    python3 .ci/company.py              # each case in a process of its own, a table last, exit 1 on a failure
    python3 .ci/company.py --only fork  # one case, in this process
"""
import argparse
import collections
import concurrent.futures
import faulthandler
import functools
import gc
import hashlib
import itertools
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import scripts
import torch
import triton
from scripts import DEVICE, FLOAT8, PRODUCTS

LIMIT = 170  # seconds for a case
grouped = scripts.MODULES["04"]
sys.modules[grouped.__name__] = grouped  # torch.compile imports by name the module whose functions it follows
CASES = {}
ALONE = {"disk_cache"}  # timed, so it runs when the others are done


def case(function):
    CASES[function.__name__] = function
    return function


def ints(*shape, dtype=torch.float16, device=DEVICE):
    return torch.randint(-1, 2, shape, device=device).float().to(dtype)


def cut(rows, columns, **kind):
    """A view whose rows are no multiple of 16 bytes apart, in the midst of NaN."""
    return torch.nn.functional.pad(ints(rows, columns, **kind), (5, 4, 3, 6), value=torch.nan)[3:-6, 5:-4]


def reference(a, b):
    """a @ b in float64, rounded once; torch differentiates it."""
    return (a.double() @ b.double()).to(torch.float16 if a.dtype in FLOAT8 else a.dtype)


def same(c, exact):
    assert c.device == exact.device, (c.device, exact.device)
    torch.testing.assert_close(c, exact, rtol=0, atol=0)


def exact(product, a, b):
    same(product(a, b), reference(a, b))


def offered(a, b, precision="ieee"):
    """The configs that 04 would time for a @ b."""
    return grouped.fitting(
        grouped.CONFIGS, None, a=a, M_KEY=a.shape[0], N=b.shape[1], K=a.shape[1], PRECISION=precision,
        FITS_TMA=grouped.fits_tma(a) and grouped.fits_tma(b))


def child(name, **env):
    """What a fresh process prints that runs a function of this file."""
    done = subprocess.run([sys.executable, __file__, "--only", name], capture_output=True, text=True,
                          env=os.environ | env, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@case
def streams():
    """Operands made late on a side stream, the call under it, with another stream at once: all four."""
    for product in PRODUCTS.values():
        a, b = ints(200, 144), ints(144, 272)
        exact(product, a, b)
        late = [(torch.cuda.Stream(), a * torch.nan, b * torch.nan) for _ in range(2)]
        torch.cuda.synchronize()
        results = []
        for side, x, y in late:
            with torch.cuda.stream(side):
                torch.cuda._sleep(100_000_000)  # some 50 ms
                x.copy_(a)
                y.copy_(b)
                results.append(product(x, y))
        assert not late[-1][0].query(), "the call waited for the GPU"
        torch.cuda.synchronize()
        for c in results:
            same(c, reference(a, b))
    with torch.cuda.stream(torch.cuda.Stream()):  # a first call, tuned there
        torch.cuda._sleep(100_000_000)
        a, b = ints(136, 160), ints(160, 144)
        c = grouped.matmul(a, b)
    torch.cuda.synchronize()
    same(c, reference(a, b))
    return "01 to 04 on two side streams, 04 first called on one"


def call_from_threads(slow_load):
    """Eight threads, first calls included; slow_load has the transpose's kernel load for a second."""
    product, barrier = grouped.matmul, threading.Barrier(8, timeout=60)
    shared = [(ints(33, 64), ints(64, 64)), (ints(1, 1024), ints(1024, 1024))]
    shared += [(cut(1024, 1024), cut(1024, 1024))]  # copied
    shared += [[ints(1024, 1024, dtype=FLOAT8[0]) for _ in "ab"]]  # b transposed
    utils = triton.runtime.driver.active.utils
    load_binary = utils.load_binary
    if slow_load:
        product(*shared[0])
        utils.load_binary = lambda *args: (time.sleep(args[0] != "matmul_kernel"), load_binary(*args))[1]

    def work(i):
        torch.manual_seed(i)
        own = [(ints(65 + i, 64), ints(64, 128)), (ints(128 + i, 1024), ints(1024, 1024))]
        operands = shared[3:] if slow_load else (own + shared)[i % 6:] + (own + shared)[:i % 6]
        barrier.wait()
        time.sleep(0.3 * i * slow_load)
        results = [(a, b, product(a, b)) for a, b in operands]
        for _ in range(20):
            results += [(a, b, product(a, b)) for a, b in operands]
        for a, b, c in results:
            same(c, reference(a, b))
        return len(results)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        calls = sum(pool.map(work, range(8)))
    return f"{calls} calls from 8 threads"


@case
def threads():
    return call_from_threads(slow_load=False)


@case
def threads_slow_load():
    return call_from_threads(slow_load=True)


def captured(product, a, b):
    """Captured after a call, replayed on new values in place, with no memory but the graph's."""
    product(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = product(a, b)
    for _ in range(3):
        a.copy_(ints(*a.shape, dtype=a.dtype))
        b.copy_(ints(*b.shape, dtype=b.dtype))
        wanted = reference(a, b)
        c.fill_(torch.nan)
        before = torch.cuda.memory_allocated()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
        same(c, wanted)


@case
def graphs():
    for name, product in PRODUCTS.items():
        captured(product, ints(200, 72), ints(72, 136))
        captured(product, cut(130, 72), ints(137, 72).T)  # copied by 02 and 03
        if name == "04":
            captured(product, cut(1024, 1024), cut(1024, 1024))
            captured(product, *[ints(1024, 1024, dtype=FLOAT8[0]) for _ in "ab"])
    return "01 to 04, with their copies: captured, replayed on new values"


@case
def first_in_capture():
    product, a, b = grouped.matmul, ints(200, 72), ints(72, 136)
    with unittest.TestCase().assertRaisesRegex(RuntimeError, "call it once before graph capture"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            product(a, b)
    exact(product, a, b)
    captured(product, a, b)
    exact(product, ints(33, 64), ints(64, 64))
    return "RuntimeError that says so; then eager calls and a capture work"


def compiled(dtype):
    """Several shapes through one compiled function, N odd, the result used further."""
    product = grouped.matmul
    f = torch.compile(lambda x, w, y: product(x @ w, y).relu() + 1, fullgraph=True)
    for M in 64, 129, 1000:
        x, w, y = ints(M, 72, dtype=dtype), ints(72, 72, dtype=dtype), ints(72, 1001, dtype=dtype)
        same(f(x, w, y), reference(reference(x, w), y).relu() + 1)
    a, w, c = ints(72, 77, dtype=dtype).T, cut(72, 72, dtype=dtype), cut(72, 33, dtype=dtype)  # views
    same(f(a, w, c), reference(reference(a, w), c).relu() + 1)
    return "64, 129, 1000 and views: as eager"


CASES["compile_float16"] = functools.partial(compiled, torch.float16)
CASES["compile_bfloat16"] = functools.partial(compiled, torch.bfloat16)


def compiled_gradients(dtype):
    """A compiled model of two layers: its output and gradients are those of float64 products."""
    class Model(torch.nn.Module):
        def __init__(self, product, first, second):
            super().__init__()
            self.product = product
            self.first, self.second = torch.nn.Parameter(first.clone()), torch.nn.Parameter(second.clone())

        def forward(self, x):
            return self.product(self.product(x, self.first).relu(), self.second.T) + 1

    weights = ints(24, 40, dtype=dtype), ints(16, 40, dtype=dtype)
    ours = torch.compile(Model(grouped.matmul, *weights), fullgraph=True)
    theirs = Model(reference, *weights)
    for M in 33, 64:
        x, grad = ints(M, 24, dtype=dtype), ints(M, 16, dtype=dtype)
        inputs = [x.clone().requires_grad_() for _ in "ab"]
        outputs = [model(x) for model, x in zip((ours, theirs), inputs, strict=True)]
        same(*outputs)
        for output in outputs:
            output.backward(grad)
        same(*(x.grad for x in inputs))
    for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        same(mine.grad, wanted.grad)
    return "output, inputs' and parameters' gradients"


CASES["compile_gradients_float32"] = functools.partial(compiled_gradients, torch.float32)
CASES["compile_gradients_bfloat16"] = functools.partial(compiled_gradients, torch.bfloat16)


@case
def gradients():
    """Gradients through transposed, sliced and split views, of a sum and of a product with values."""
    product = grouped.matmul
    prune = grouped.fitting
    grouped.tuned_kernel.early_config_prune = lambda *args, **kwargs: prune(*args, **kwargs)[:1]  # untimed
    VIEWS = [
        lambda x: x[:33, :21], lambda x: x.T[:33, :21], lambda x: x[1:34, 3:24],
        lambda x: x[::2, 1::2][:33, :21],
    ]
    count = 0
    for dtype in torch.float32, torch.float16, torch.bfloat16:
        leaves = ints(70, 70, dtype=dtype), ints(70, 70, dtype=dtype)
        for i, (of_a, of_b) in enumerate(itertools.product(VIEWS, VIEWS)):
            grads = []
            for multiply in product, reference:
                x, y = (leaf.clone().requires_grad_() for leaf in leaves)
                c = multiply(of_a(x), of_b(y).T)
                torch.manual_seed(i)
                (c * ints(33, 33, dtype=dtype) if i % 2 else c).sum().backward()
                grads.append((c.detach(), x.grad, y.grad))
            for ours, theirs in zip(*grads, strict=True):
                same(ours, theirs)
            count += 1
    hidden, frozen = ints(70, 70, dtype=torch.float32).requires_grad_() * 1, ints(70, 70, dtype=torch.float32)
    c = product(hidden, frozen)
    hidden.relu_()  # its gradient takes frozen alone, so that this may change, as with torch.matmul
    c.sum().backward()
    return f"{count} pairs of views, float32, float16 and bfloat16; an operand that changes after use"


@case
def two_gpus():
    if torch.cuda.device_count() < 2:
        return "skipped: there is one GPU"
    for current, other in (0, 1), (1, 0), (0, 0), (1, 1):
        torch.cuda.set_device(current)
        for name, product in PRODUCTS.items():
            kind = {"device": f"cuda:{other}"}
            pairs = [(ints(200, 72, **kind), ints(72, 136, **kind))]
            if name == "04":  # copied
                pairs += [(cut(1024, 1024, **kind), cut(1024, 1024, **kind))]
            for a, b in pairs * 2:
                exact(product, a, b)
                assert torch.cuda.current_device() == current
        with unittest.TestCase().assertRaisesRegex(ValueError, "cuda:0.*cuda:1"):
            grouped.matmul(ints(4, 4, device="cuda:0"), ints(4, 4, device="cuda:1"))
    return "01 to 04, either GPU current"


def spawned():
    exact(grouped.matmul, ints(33, 64), ints(64, 64))


@case
def fork():
    """A process forked after CUDA was used gets torch's error; the parent goes on; a spawned one works."""
    a, b = ints(33, 64), ints(64, 64)
    for name, product in PRODUCTS.items():
        exact(product, a, b)
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            signal.alarm(20)  # a child that hangs is ended by it, and the pipe closes
            try:
                words = f"no error: {product(a, b).sum()}"
            except BaseException as error:
                words = f"{type(error).__name__}: {error}"
            os.write(writer, words.encode())
            os._exit(0)
        os.close(writer)
        words = os.read(reader, 10_000).decode()
        os.close(reader)
        os.waitpid(pid, 0)
        assert re.search("CUDA (error: initialization error|in forked)", words), (name, words or "it hung")
        exact(product, a, b)
    process = multiprocessing.get_context("spawn").Process(target=spawned)
    process.start()
    process.join(100)
    assert process.exitcode == 0, process.exitcode
    return "01 to 04: torch's error in a forked child, the parent goes on; a spawned child is right"


@case
def leak():
    """10,000 calls, 500 shapes: M = 1..50 by ten (N, K), tuned as usual (70 times): no memory grows."""
    def rss():
        gc.collect()
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    product, a, b = grouped.matmul, ints(50 * 2048), ints(1024 * 1024)
    NK = [(64, 64), (64, 128), (128, 64), (128, 128), (256, 64)]
    NK += [(1024, 1024), (1024, 512), (2048, 512), (512, 1024), (512, 2048)]
    shapes = [(M, N, K) for M in range(1, 51) for N, K in NK]
    device, host = [torch.cuda.memory_allocated()], []
    for i in range(20):
        for M, N, K in shapes:
            x, y = a[:M * K].view(M, K), b[:N * K].view(K, N)
            c = product(x, y)
            if i in (0, 19):
                same(c, reference(x, y))
        torch.cuda.synchronize()
        del c
        device.append(torch.cuda.memory_allocated())
        host.append(rss())
    workspace = device[1] - device[0]  # cuBLAS's, of the reference
    assert len(set(device[1:])) == 1 and len(grouped.PLANS) == 500, (device, len(grouped.PLANS))
    growth = host[-1] - host[2]
    assert growth < 4, f"{growth:.1f} MiB more after 8,500 calls: {host}"
    return (f"host {growth:+.2f} MiB over the last 8,500 of 10,000 calls, GPU +0 MiB "
            f"(+{workspace / 2**20:.0f} in the first 500), {len(grouped.tuned_kernel.cache)} tunings")


@case
def repeat():
    """Twenty calls, the same bits."""
    product = grouped.matmul
    for M, N, K, dtype in [(512, 512, 4096, torch.float16), (300, 300, 300, torch.bfloat16),
                           (300, 300, 300, torch.float32)]:
        a, b = (torch.randn(*shape, device=DEVICE).to(dtype) for shape in ((M, K), (K, N)))
        first = product(a, b)
        for _ in range(19):
            same(product(a, b), first)
    return "float16, bfloat16, float32: the same bits 20 times"


def digest(c):
    return hashlib.sha256(c.cpu().numpy().tobytes()).hexdigest()[:16]


def draw():
    torch.manual_seed(0)
    return torch.randn(512, 4096, device=DEVICE).half(), torch.randn(4096, 512, device=DEVICE).half()


def bits():
    return digest(grouped.matmul(*draw()))


@case
def processes():
    """512x512x4096: every config exact on ints; three fresh processes give the same bits on normal ones."""
    a, b = ints(512, 4096), ints(4096, 512)
    configs = offered(a, b)
    for config in configs:
        exact(grouped.plan(a, b, "ieee", config), a, b)
    kinds = {digest(grouped.plan(*draw(), "ieee", config)(*draw())) for config in configs}
    ours = bits()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        theirs = [words.split()[-1] for words in pool.map(child, ["bits"] * 3)]
    assert theirs == [ours] * 3, (ours, theirs, kinds)
    return f"{len(configs)} configs exact; on normal values {len(kinds)} sets of bits, one in 4 processes"


@case
def tunings():
    """How often 04 tunes for M = 1..64, N = K = 1024, again, for another layout, for another dtype."""
    def count(sizes, dtype=torch.float16, transposed=False):
        before = len(cache)
        for M in sizes:
            b = ints(1024, 1024, dtype=dtype)
            exact(grouped.matmul, ints(M, 1024, dtype=dtype), b.T if transposed else b)
        return len(cache) - before

    cache = grouped.tuned_kernel.cache
    counts = count(range(1, 65)), count(range(1, 65)), count([8], transposed=True), count([8], torch.float32)
    assert counts == (7, 0, 1, 1), counts
    return "7 for M = 1..64, then 0; 1 for b transposed, 1 for float32"


def first_call():
    a, b = ints(33, 64), ints(64, 64)
    torch.cuda.synchronize()
    start = time.perf_counter()
    c = grouped.matmul(a, b)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    same(c, reference(a, b))
    return f"{seconds:.3f} s"


@case
def disk_cache():
    """With an empty cache on disk the first process tunes, the second does not."""
    with tempfile.TemporaryDirectory() as folder:
        said = [child("first_call", TRITON_PRINT_AUTOTUNING="1", TRITON_CACHE_DIR=folder) for _ in range(2)]
    timed = [len(re.findall("^Autotuning kernel", words, re.MULTILINE)) for words in said]
    assert timed[0] > 1 and timed[1] == 0, said
    first, second = (words.strip().splitlines()[-1] for words in said)
    return f"first call {first} with {timed[0]} configs timed, in the second process {second} with none"


@case
def memory():
    """What a call allocates, at its most, beside a and b: C, and the copies that the layout forces."""
    def peak(product, a, b):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        c = product(a, b)
        assert torch.cuda.memory_allocated() - before == c.nbytes, "a call keeps more than C"
        return torch.cuda.max_memory_allocated() - before - c.nbytes

    words = []
    half = ints(1024, 1024), ints(1024, 1024)
    for name, product in PRODUCTS.items():
        first, warm = peak(product, *half), peak(product, *half)
        assert warm == (2**21 if name == "03" else 0), (name, warm)  # 03's transpose of b
        words += [f"{name} {first / 2**20:g} first, {warm / 2**20:g} warm"]
    float8 = [ints(1024, 1024, dtype=FLOAT8[0]) for _ in "ab"]
    for name, (a, b), copies in [
        ("cut", (cut(1024, 1024), cut(1024, 1024)), 2**22), ("small, cut", (cut(512, 512), cut(512, 512)), 0),
        ("float8", float8, 2**20),
    ]:
        first, warm = peak(grouped.matmul, a, b), peak(grouped.matmul, a, b)
        assert warm == copies, (name, warm)
        words += [f"04 {name} {first / 2**20:g} first, {warm / 2**20:g} warm"]
    return "MiB beside a, b, c: " + "; ".join(words)


def fp8(x, y):
    """{-1, 0, 1} by every config; 2**15, then 1023 ones, then -2**15: float32 sums keep the ones."""
    a, b = torch.zeros(128, 4096, device=DEVICE), torch.zeros(4096, 256, device=DEVICE)
    a[:, :512], a[:, 512:1535], a[:, -512:] = 8, 1, -8
    b[:512], b[512:1535], b[-512:] = 8, 1, 8
    ones = a.to(x), b.to(y)
    oversized, count = 0, 0
    for M, N, K in (128, 256, 4096), (16, 256, 4096), (33, 48, 80), (70, 130, 67):
        a = ints(M, K, dtype=x)
        cases = [(a, ints(K, N, dtype=y), None), (a, ints(N, K, dtype=y).T, 2)]  # and how many configs
        cases += [(ones[0][:M], ones[1], None)] if K == 4096 else []
        for a, b, some in cases:
            for config in offered(a, b)[:some]:
                try:
                    launch = grouped.plan(a, b, "ieee", config)
                except triton.runtime.errors.OutOfResources:
                    oversized += 1
                    continue
                exact(launch, a, b)
                count += 1
    return f"{count} products exact, {oversized} too large for the card (the tuner would skip them)"


for x, y in itertools.product(FLOAT8, FLOAT8):
    CASES[f"fp8_{str(x)[13:]}_{str(y)[13:]}"] = functools.partial(fp8, x, y)


@case
def fp8_rounding():
    """Normal values in float8: within half an ulp of C, K float32 roundings and the tensor cores' 13 bits."""
    words, failed = [], False
    for dtype, K in itertools.product(FLOAT8, (64, 512, 4096)):
        a, b = torch.randn(128, K, device=DEVICE).to(dtype), torch.randn(K, 256, device=DEVICE).to(dtype)
        wanted, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        error, half_ulp = (grouped.matmul(a, b) - wanted).abs(), 2**-11 * wanted.abs() + 2**-25
        outside = error > half_ulp + (K * 2**-24 + 2**-13) * scale
        lost = ((error - half_ulp) / scale).max().clamp(min=2**-40).log2()
        words += [f"{str(dtype)[13:]} K={K}: {outside.sum()} outside, by up to 2**{lost:.1f} |A| @ |B|"]
        failed |= bool(outside.any())
    assert not failed, "; ".join(words)
    return "; ".join(words)


@case
def tf32():
    """01 is always ieee; 02 to 04 obey torch's switch."""
    a, eye = torch.full((32, 32), 1 + 2**-12, device=DEVICE), torch.eye(32, device=DEVICE)
    for precision in "highest", "high", "highest":
        torch.set_float32_matmul_precision(precision)
        for name, product in PRODUCTS.items():
            same(product(a, eye), torch.ones_like(a) if precision == "high" and name != "01" else a)
    return "highest: exactly a; high: 1.0 by 02 to 04"


def run(name):
    start = time.perf_counter()
    try:
        done = subprocess.run([sys.executable, __file__, "--only", name], capture_output=True, text=True,
                              timeout=LIMIT + 30)
        code, said = done.returncode, done.stdout + done.stderr
        errors = re.findall(r"^[\w.]*(?:Error|Timeout|Skip).*", said, re.MULTILINE) if code else []
        words = (errors or (said if code else done.stdout).strip().splitlines())[-1:]
    except subprocess.TimeoutExpired:
        code, said, words = 1, "", ["no end"]
    words = words[0] if words else f"exit code {code}"
    state = "FAILED" if code else "skipped" if words.startswith("skipped") else "passed"
    if code:
        print(f"##### {name}\n{said[-3000:]}", flush=True)
    return name, state, time.perf_counter() - start, words


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--jobs", type=int, default=12, help="cases at once")
    args = parser.parse_args()
    if DEVICE == "cpu":
        sys.exit("There is no GPU, or the interpreter is on")
    if args.only:
        function = CASES.get(args.only) or globals().get(args.only)
        if not callable(function):
            parser.error(f"no case {args.only}: one of {', '.join(CASES)}")
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        print(function())
        sys.exit()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(run, [name for name in CASES if name not in ALONE]))
    rows += map(run, sorted(ALONE))
    for name, state, seconds, words in rows:
        print(f"{state:8}{seconds:5.0f} s  {name:27} {words}")
    counts = collections.Counter(state for _, state, _, _ in rows)
    print(f"{counts['passed']} passed, {counts['skipped']} skipped, {counts['FAILED']} failed")
    sys.exit(counts["FAILED"] > 0)
