"""The first hour without a GPU: set-up, what runs where, what is missing, line ends, profilers."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
TORCH = """
class cuda:
    is_available = staticmethod(lambda: False)
    def get_device_name(): raise RuntimeError("Found no driver. Install one")
def set_float32_matmul_precision(precision): pass
"""
PIP = """
import shutil, sys, sysconfig
if __name__ == "__main__":
    print("" if "--quiet" in sys.argv else "Downloading")
    shutil.copytree({!r}, sysconfig.get_path("purelib"), dirs_exist_ok=True)
"""
STUB = "import sys, common\nif '--benchmark' in sys.argv: common.results()\nprint('passed in 0.1 s')\n"
CPU_BUILD = "import torch\nvars(torch._C).pop('_cuda_getDeviceCount', 0)\nimport common\n" \
            "print(torch.get_float32_matmul_precision())\n"
PYTHON_3_9 = f"""#!{sys.executable} -S
import runpy, sys
sys.version, sys.version_info, sys.path[0], sys.argv = "3.9.18 (main)", (3, 9, 18), "", sys.argv[1:]
exec(sys.argv[1]) if sys.argv[0] == "-c" else runpy.run_path(sys.argv[0], run_name="__main__")
"""


def script(path, text):
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def packages(folder, torch="2.10.0", triton="3.6.0", numpy="2.3.5", code=TORCH):
    """A Python that finds these first: the few lines of each package that common.py needs."""
    python = script(folder / "bin/python", f'#!/bin/sh\nPYTHONPATH={folder} {sys.executable} "$@"\n')
    (folder / "bin/python3").symlink_to(python)
    knobs = "class knobs:\n class runtime: interpret = True"
    for name, version, text in ("torch", torch, code), ("triton", triton, knobs), ("numpy", numpy, ""):
        (folder / f"{name}.py").write_text(f"__version__ = {version!r}\n{text}\n")
    return python


def expect(status, pattern, *command, cwd, python=None, never="Traceback", **environment):
    """The command's status and output, with python's folder on PATH and without the caller's settings."""
    kept = {name: value for name, value in os.environ.items() if not re.match("PYTHON(O|$)|TRITON_", name)}
    kept |= {"PATH": f"{python and python.parent}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""} | environment
    done = subprocess.run(command, cwd=cwd, text=True, env=kept, timeout=100, stderr=subprocess.STDOUT,
                          stdout=subprocess.PIPE)
    right = done.returncode == status and re.search(pattern, done.stdout, re.M)
    assert right and not re.search(never, done.stdout), (status, pattern, never, done)


def set_up(copy, home):
    """No torch, a .venv without its Python: it is made anew, pip shows its work, the end says how to go on"""
    bare = script(home / "bare/python3", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    script(home / "fake/pip.py", PIP.format(str(packages(home / "good").parents[1])))
    (copy / ".venv/bin").mkdir(parents=True)
    for name in "python", "python3":
        (copy / ".venv/bin" / name).symlink_to("/gone/python3")
    expect(0, r"Downloading(.|\n)* \.venv/bin/python 04_autotune_grouped\.py\n"
           r"CPU, .* torch 2\.10\.0 .*Triton 3\.6\.0.*\n4 passed, 0 failed\n\Z",
           "./run_all.sh", cwd=copy, python=bare, PYTHONPATH=str(home / "fake"))
    for python, *expected in (bare, 1, r"\.venv/bin/python"), (".venv/bin/python", 0, r"\ACPU, .*\npassed"):
        expect(*expected, python, "04_autotune_grouped.py", cwd=copy, never="Traceback|pip", PYTHONPATH="")


def versions(copy, home):
    """Python 3.9, torch 2.9, Triton 3.5, Triton 3.6 with NumPy 2.4: what is needed and found; no download"""
    python = script(home / "old/python3", PYTHON_3_9)
    for command in (python, "02_block_matmul.py"), ("./run_all.sh",):
        expect(1, r"3\.10.*3\.9\.18", *command, cwd=copy, python=python, never="Traceback|nstall|once")
    for needed, *found in ("2.10", "2.9"), ("3.6", "2.10", "3.5"), ("2.4", "2.10", "3.6", "2.4.1"):
        pattern = rf"\A.*{needed}.*{'.*'.join(found)}.*\n\Z"
        expect(1, pattern, packages(home / needed, *found), "03_coalesced.py", cwd=copy)


def broken_torch(copy, home):
    """Its reason is shown, and a .venv that works is used"""
    broken = packages(home / "broken", code="raise ImportError('libcudart.so: cannot open')")
    packages(copy / ".venv")
    expect(0, r"libcudart.so: cannot open(.|\n)*^4 passed, 0 failed$", "./run_all.sh", cwd=copy,
           python=broken, never="nstalling|setting up")


def usage(copy, home):
    """-h and --help: 0; another word: 2; sh in front; --benchmark without a GPU: 2 and why, once"""
    run_all = {"cwd": copy, "PYTHON": str(packages(home / "good"))}
    for word, status in ("-h", 0), ("--help", 0), ("--bench", 2):
        expect(status, r"Usage: \./run_all\.sh", "./run_all.sh", word, **run_all)
    expect(0, "^1 passed, 0 failed$", "sh", "run_all.sh", "02", **run_all)
    expect(2, r"\A.*no GPU \(Found no driver.*\n\Z", "./run_all.sh", "--benchmark", **run_all)


def line_ends(copy, home):
    """A clone with core.autocrlf=true has LF everywhere and runs"""
    clone = "git add -A && git -c user.name=x -c user.email=x commit -qm x && " \
            "git -c core.autocrlf=true clone -q . ../clone && git -C ../clone ls-files --eol"
    expect(0, "run_all.sh", "sh", "-c", f"git init -q && {clone}", cwd=copy, never="w/(crlf|mixed)")
    expect(0, "Usage", "./run_all.sh", "-h", cwd=home / "clone")


def reasons(copy, home):
    """The first line has torch, Triton and why there is no GPU; --benchmark ends with 2 and that"""
    shutil.copy(ROOT / "02_block_matmul.py", copy)
    why = r"torch \d.* sees no GPU \(.*CUDA_VISIBLE_DEVICES=''.*Triton \d.*\n"
    expect(2, rf"\ACPU, under Triton's interpreter: {why}.*{why}\Z",
           sys.executable, "02_block_matmul.py", "--benchmark", cwd=copy)
    (copy / "cpu_build.py").write_text(CPU_BUILD)
    expect(0, r"\ACPU, .*not compiled with CUDA.*\nhighest\n\Z", sys.executable, "cpu_build.py", cwd=copy,
           TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1")


def profilers(copy, home):
    """trace, exec with fresh globals (Proton's way) and cProfile run a script as python does; few sizes"""
    for name in "02_block_matmul.py", "04_autotune_grouped.py":
        text = re.sub("for M, N, K in .*:", "for M, N, K in [(9, 9, 9)]:", (ROOT / name).read_text())
        text = re.sub("in (CONFIGS|DTYPES):", r"in \1[-1:]:", text).replace(", test_gradients:", ":")
        (copy / name).write_text(text)
    proton = f"exec(compile(open('{name}').read(), '{name}', 'exec'), {{'__name__': '__main__'}})"
    for options in [
        ("-m", "trace", "-cC", home, "--ignore-dir", sys.base_prefix, "02_block_matmul.py"),
        ("-c", proton), ("-m", "cProfile", "-o", home / "profile", name),
    ]:
        expect(0, "^passed", sys.executable, *options, cwd=copy)


def prepared(check):
    with tempfile.TemporaryDirectory() as folder:
        home, copy = pathlib.Path(folder), pathlib.Path(folder, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "cache", "__pycache__"))
        for path in copy.glob("0*.py"):
            path.write_text(STUB)
        check(copy, home)


checks = profilers, reasons, set_up, versions, broken_torch, usage, line_ends
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    errors = [future.exception() for future in [pool.submit(prepared, check) for check in checks]]
for check, error in zip(checks, errors, strict=True):
    print("FAILED:" if error else "passed:", check.__doc__, error or "")
print(f"{errors.count(None)} passed, {len(errors) - errors.count(None)} failed")
sys.exit(any(errors))
