"""The first hour without a GPU: set-up, what runs where, what is missing, copies, line ends, profilers."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from fuzz import WRAPPERS

ROOT = pathlib.Path(__file__).parents[1]
VERSION = "import os\n__version__ = os.getenv(__name__, {!r})\n"
PYTHON = f'#!/bin/sh\n{{}} exec {sys.executable} {{}} "$@"\n'
FILES = {  # below $HOME; of each package the few lines that common.py needs
    "real/python3": PYTHON.format("", ""),
    "bare/python3": PYTHON.format("", "-S"),
    "good/python3": PYTHON.format("PYTHONPATH=$HOME/good", ""),
    "broken/python3": PYTHON.format("PYTHONPATH=$HOME/broken:$HOME/good", ""),
    "old/python3": PYTHON.format("", "-S $HOME/old/main.py"),
    "good/numpy.py": VERSION.format("2.3.5"),
    "good/triton.py": VERSION.format("3.6.0") + "class knobs:\n class runtime: interpret = True",
    "good/torch.py": VERSION.format("2.10.0") + """
class cuda:
    is_available = staticmethod(lambda: False)
    def get_device_name(): raise RuntimeError("Found no driver. Install one")
def set_float32_matmul_precision(precision): pass
""",
    "broken/torch.py": "raise ImportError('libcudart.so: cannot open')",
    "fake/pip.py": """
import os, shutil, sys, sysconfig
if __name__ == "__main__":
    print("" if "--quiet" in sys.argv else "Downloading")
    shutil.copytree(os.environ["HOME"] + "/good", sysconfig.get_path("purelib"), dirs_exist_ok=True)
""",
    "old/main.py": """
import runpy, sys
sys.version, sys.version_info, sys.path[0], sys.argv = "3.9.18 (main)", (3, 9, 18), "", sys.argv[1:]
exec(sys.argv[1]) if sys.argv[0] == "-c" else runpy.run_path(sys.argv[0], run_name="__main__")
""",
    "copy/cpu.py": """
import torch
vars(torch._C).pop("_cuda_getDeviceCount", 0)
import common
print(torch.get_float32_matmul_precision())
""",
    "copy/without.py": "import runpy, sys\nsys.modules['triton'] = None\n"
                       "runpy.run_path(sys.argv[1], run_name='__main__')\n",
    "copy/use.py": """
import importlib, os, sys, torch
before = dict(os.environ)
for wrapper in sys.argv[2:]:
    product = getattr(importlib.import_module(sys.argv[1]), wrapper)
    a, b = torch.randint(-1, 2, (9, 47)).half(), torch.randint(-1, 2, (47, 31)).half()
    assert torch.equal(product(a, b), (a.double() @ b.double()).half()), wrapper + ": wrong product"
    assert before == dict(os.environ) and "common" not in sys.modules, "the import changed something"
    if wrapper == "matmul":
        a.requires_grad_()
        product(a, b).sum().backward()
        assert torch.equal(a.grad, b.sum(1).expand(9, 47)), "wrong gradient"
""",
    "copy/fresh.py": "exec(compile(open('few_04.py').read(), 'few_04.py', 'exec'), {'__name__': '__main__'})",
}
STUB = "import sys, common\nif '--benchmark' in sys.argv: common.results()\nprint('passed in 0.1 s')\n"
WHY = r"torch \d.* sees no GPU \(.*CUDA_VISIBLE_DEVICES=''.*Triton \d.*\n"
CHECKS = [  # title, which python3, exit status, pattern of the output, command; few_: of few sizes
    *((f"{name} runs a script as python does", "real", 0, "^passed", f"python3 {how}") for name, how in [
        ("trace", f"-m trace -cC . --ignore-dir {sys.base_prefix} few_02.py"),
        ("exec with fresh globals (Proton)", "fresh.py"), ("cProfile", "-m cProfile -o out few_04.py")]),
    ("The first line has torch, Triton and why there is no GPU; --benchmark ends with 2 and that", "real",
     2, rf"\ACPU, under Triton's interpreter: {WHY}.*{WHY}\Z", "python3 few_02.py --benchmark"),
    ("So has a torch without CUDA; no tf32 by an environment variable", "real", 0,
     r"\ACPU, .*not compiled with CUDA.*\nhighest\n\Z", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 python3 cpu.py"),
    ("No torch, a .venv without its Python: it is made anew, pip shows its work, the end says how to go on",
     "bare", 0, r"Downloading(.|\n)* \.venv/bin/python 04_autotune_grouped\.py\n"
     r"CPU, .* torch 2\.10\.0 .*Triton 3\.6\.0.*\n4 passed, 0 failed\nCPU, .*\npassed.*\n\Z",
     "mkdir -p .venv/bin && ln -s /gone/python3 .venv/bin/python && ln -s /gone/python3 .venv/bin/python3 && "
     "PYTHONPATH=$HOME/fake ./run_all.sh && PYTHONPATH= .venv/bin/python 04_autotune_grouped.py"),
    ("No torch: a script names .venv's Python, not pip", "bare", 1, r"\A(?!.*pip).*\.venv/bin/python.*\n\Z",
     "PYTHONPATH= python3 04_autotune_grouped.py"),
    *((f"Python 3.9, {command}: what is needed and found, no download", "old", 1,
       r"\A.*3\.10.*3\.9\.18\n\Z", command) for command in ("./run_all.sh", "python3 02_block_matmul.py")),
    *((f"{name}={old}: what is needed and found", "good", 1,
       rf"(?i)\A.*{need}.*found.*{name} {old}.*\n\Z", f"{name}={old} python3 03_coalesced.py")
      for name, need, old in [("torch", "2.10", "2.9"), ("triton", "3.6", "3.5"), ("numpy", "2.4", "2.4.1")]),
    ("A broken torch: why, and a .venv that works is used", "broken", 0,
     r"\A.*Traceback(.|\n)*libcudart.so: cannot open\n(===.*\n.*\npassed.*\n){4}.*\n.*\n4 passed, 0.*\n\Z",
     "mkdir -p .venv/bin && ln -s $HOME/good/python3 .venv/bin/python && ./run_all.sh"),
    ("-h and --help: 0; another word: 2", "good", 2, r"\A(Usage: \./run_all\.sh.*\n){2}.*Usage: .*\n\Z",
     "./run_all.sh -h && ./run_all.sh --help && ./run_all.sh --bench"),
    ("sh in front; $PYTHON", "old", 0, "^1 passed, 0 failed$", "PYTHON=$HOME/good/python3 sh run_all.sh 02"),
    ("--benchmark without a GPU: 2 and why, once", "good", 2, r"\A.*no GPU \(Found no driver.*\n\Z",
     "./run_all.sh --benchmark"),
    ("A clone with core.autocrlf=true has LF everywhere and runs", "good", 0,
     r"\A(i/.* w/(lf|none|-text) .*\n)+Usage.*\n\Z",
     "git init -q && git add -A && git -c user.name=x -c user.email=x commit -qm x && "
     "git -c core.autocrlf=true clone -q . clone && git -C clone ls-files --eol && clone/run_all.sh -h"),
]
EACH, ALL = [f"with_{number} {name}" for number, name in WRAPPERS.items()], " ".join(WRAPPERS.values())
CHECKS += [(f"A copy: {x}", "real", 0, r"\A\Z", f"TRITON_INTERPRET=1 python3 use.py {x}")
           for x in [*EACH, f"one {ALL}", f"eno {ALL}"]]
CHECKS += [(f"Not interpreted: {x}", "real", 1, r"Traceback(.|\n)*^ValueError.*TRITON_INTERPRET=1$",
            f"python3 use.py {x}") for x in EACH]
CHECKS += [(f"{x} without Triton", "real", 1, r"\A.*run_all\.sh.*\n\Z", f"python3 without.py few_{x}.py")
           for x in WRAPPERS]


def failure(home, title, python, status, pattern, command):
    """What is wrong, if anything, with command in a copy of its own, without the caller's settings."""
    folder = shutil.copytree(home / "copy", tempfile.mkdtemp(dir=home), dirs_exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not re.match("PYTHON(O|$)|TRITON_", name)}
    env |= {"HOME": str(home), "PATH": f"{home / python}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(["timeout", "100", "sh", "-c", command], cwd=folder, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    right = done.returncode == status and re.search(pattern, done.stdout, re.M)
    return None if right and ("Traceback" in pattern or "Traceback" not in done.stdout) else (pattern, done)


with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
    home = pathlib.Path(folder)
    ignored = shutil.ignore_patterns(".git", ".venv", "cache", "__pycache__")
    shutil.copytree(ROOT, home / "copy", ignore=ignored)
    texts = {path.name: path.read_text() for path in sorted(ROOT.glob("0*.py"))}
    FILES |= {"copy/one.py": "\n\n".join(texts.values()), "copy/eno.py": "\n\n".join([*texts.values()][::-1])}
    for name, text in texts.items():
        few = re.sub("for M, N, K in .*:", "for M, N, K in [(9, 9, 9)]:", text)
        few = re.sub(r"(CONFIGS|DTYPES)(\)?):", r"\1[-1:]\2:", few).replace(", test_gradients:", ":")
        FILES |= {f"copy/{name}": STUB, f"copy/few_{name[:2]}.py": few,
                  f"copy/with_{name[:2]}.py": "from __future__ import annotations\n" + text}
    for name, text in FILES.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    failures = list(pool.map(lambda check: failure(home, *check), CHECKS))
for (title, *_), found in zip(CHECKS, failures, strict=True):
    print("FAILED:" if found else "passed:", title, found or "")
print(f"{failures.count(None)} passed, {len(failures) - failures.count(None)} failed")
sys.exit(any(failures))
