"""Facts about the files: budgets, layout, private names, README's links, commands and figures; copies work.

Prints one line for each that does not hold. Argument: the repository's folder, if it is not this one.
"""
import ast
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from fuzz import WRAPPERS

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
SCRIPTS = {next(ROOT.glob(f"{number}_*.py")): wrapper for number, wrapper in WRAPPERS.items()}
BUDGETS = {  # lines, bytes
    "01": (110, 5400), "02": (120, 6200), "03": (120, 6200), "04": (280, 15500),
    "common.py": (45, 2300), "run_all.sh": (50, 2500), "README.md": (150, 10000)}
DUNDERS = "__name__", "__doc__", "__file__"
USE = """
import importlib, os, sys, torch
before = dict(os.environ)
for name, wrapper in {}:
    product = getattr(importlib.import_module(name), wrapper)
    a, b = torch.randint(-1, 2, (9, 47)).half(), torch.randint(-1, 2, (47, 31)).half()
    assert torch.equal(product(a, b), (a.double() @ b.double()).half()), wrapper + ": wrong product"
    assert dict(os.environ) == before, "environment changed"
    if wrapper == "matmul":
        a.requires_grad_()
        product(a, b).sum().backward()
        assert torch.equal(a.grad, b.sum(1).expand(9, 47)), "wrong gradient"
assert "common" not in sys.modules, "common.py imported"
"""
COMPILED = """
import importlib, torch
for name, wrapper in {}:
    product = getattr(importlib.import_module(name), wrapper)
    try:
        product(torch.ones(4, 4), torch.ones(4, 4))
        raise SystemExit(wrapper + " takes operands on the CPU")
    except ValueError as error:
        assert "TRITON_INTERPRET=1" in str(error), error
"""
WITHOUT = """
import runpy, sys
sys.modules["triton"], sys.path[0] = None, {!r}
runpy.run_path({!r}, run_name="__main__")
"""


def tracked():
    listing = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted({name for name in names if name and (ROOT / name).exists()})


def budgets():
    """Lines and bytes; columns; the layout."""
    for name, limits in BUDGETS.items():
        data = next(ROOT.glob(f"{name}*")).read_bytes()
        for what, size, limit in zip(("lines", "bytes"), (data.count(b"\n"), len(data)), limits, strict=True):
            if size > limit:
                yield f"{name}: {size} {what}, at most {limit}"
    hidden = [name for name in tracked() if name.startswith(".ci/")]
    lines = sum((ROOT / name).read_text().count("\n") for name in hidden)
    if len(hidden) > 8 or lines > 1506:
        yield f".ci: {len(hidden)} files, {lines} lines, at most 8 and 1506"
    for name in tracked():
        if name.endswith((".py", ".sh")) or name == ".ci/run":
            for i, line in enumerate((ROOT / name).read_text().splitlines(), 1):
                if len(line) > 110:
                    yield f"{name}:{i}: {len(line)} columns, at most 110"
    changed = subprocess.run(["diff", *list(SCRIPTS)[1:3]], capture_output=True, text=True).stdout
    if (count := len(re.findall("^[<>]", changed, re.MULTILINE))) > 40:
        yield f"02 and 03 differ in {count} lines, at most 40"
    owned = {path.name for path in SCRIPTS} | {"common.py", "run_all.sh", "README.md", "results"}
    for name in {name.split("/")[0] for name in tracked()} - owned:
        if not name.startswith("."):
            yield f"{name} is not of the repository's layout"


def private_names():
    """Nothing that its library does not document: private names, kernels' run, versions told apart."""
    for path in [*SCRIPTS, ROOT / "common.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [part for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)
                     for part in f"{getattr(node, 'module', None) or ''}.{alias.name}".split(".")]
            if isinstance(node, ast.Attribute):
                names = [node.attr]
                if node.attr == "run" and ast.unparse(node.value) != "benchmark":
                    names.append("_.run")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
                names = [getattr(node.args[1], "value", "")]
            for name in names:
                version = name == "__version__" and path.name == "common.py"
                if name == "getclosurevars" or name[:1] == "_" and name not in DUNDERS and not version:
                    yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def links():
    """The README's relative links, and the files that its commands name, are there."""
    text = (ROOT / "README.md").read_text()
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
    named = {link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link}
    named |= set(re.findall(r"(?<![\w/])(?<!writefile )((?:\./|\.ci/)?\w+\.(?:py|sh)|\.ci/\w+)\b", code))
    for name in named:
        if not (ROOT / name).exists():
            yield f"README.md names {name}, which is not there"


def figures():
    """Each of the README's figures stands on the page of results."""
    page = ROOT / "results/nvidia-h200/README.md"
    if not page.exists():
        print(f"SKIPPED: there is no {page.relative_to(ROOT)} to look the README's figures up in")
        return
    text = re.sub(r"(?s)```.*?```|`[^`]*`|\]\([^)]*\)|https?://\S+", "", (ROOT / "README.md").read_text())
    text = re.sub(r"\d{4}-\d\d-\d\d|\d+\.\d+\.\d+\S*", "", text)
    text = re.sub(r"(?i)(python|torch|triton|numpy|cuda|capability)( below)? \d+\.\d+", "", text)
    known = {number.replace(",", "") for number in re.findall(r"\d[\d,]*(?:\.\d+)?", page.read_text())}
    for number in re.findall(r"\d[\d,]*\.\d+|\d[\d,]*(?=\s?(?:%|(?:TFLOPS|µs|ms|GB|s)\b))", text):
        if number.replace(",", "") not in known:
            yield f"README.md: {number} does not stand in {page.relative_to(ROOT)}"


def copies():
    """Each script alone under another name, all in one file, with annotations as text, without Triton."""
    def fresh(title, files, code, expected=""):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                pathlib.Path(folder, name).write_text(text)
            env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
            env |= {"TRITON_INTERPRET": "1"} if code.startswith(USE[:20]) else {"CUDA_VISIBLE_DEVICES": ""}
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        said = (done.stdout + done.stderr).strip()
        if done.returncode != bool(expected) or expected not in said or said and not expected:
            yield f"{title}: {said.splitlines()[-1:] or 'says nothing'}"

    texts = {path.name: path.read_text() for path in SCRIPTS}
    future = {f"with_{name}": "from __future__ import annotations\n" + text for name, text in texts.items()}
    pairs = [(f"with_{path.stem}", wrapper) for path, wrapper in SCRIPTS.items()]
    one = USE.format([("one", wrapper) for wrapper in SCRIPTS.values()])
    tasks = [
        ("with annotations as text", future, USE.format(pairs)),
        ("compiled, without a GPU", future, COMPILED.format(pairs)),
        ("all in one file", {"one.py": "\n\n".join(texts.values())}, one),
        ("all in one file, the last first", {"one.py": "\n\n".join([*texts.values()][::-1])}, one),
        *((f"{path.name}, copied", {"copied.py": texts[path.name]}, USE.format([("copied", wrapper)]))
          for path, wrapper in SCRIPTS.items()),
        *((f"{path.name} without Triton", {}, WITHOUT.format(str(ROOT), str(path)), "run_all.sh")
          for path in SCRIPTS),
    ]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda task: [*fresh(*task)], tasks):
            yield from found


violations = [line for check in (budgets, private_names, links, figures, copies) for line in check()]
print(*violations, f"{len(violations)} facts do not hold", sep="\n")
sys.exit(bool(violations))
