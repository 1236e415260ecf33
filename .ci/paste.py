"""Each numbered script, alone in an empty folder under another name or its own, is a module like any other.

Imported in a fresh process with TRITON_INTERPRET=1 it multiplies ragged matrices exactly, and a slice of a
NumPy array by that array, prints nothing, leaves the environment alone and imports no common.py. All four
in one file, in either order, leave each other alone.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import scripts

USE = """
import importlib, os, sys
import torch
before = dict(os.environ)
pasted = importlib.import_module({name!r})
a, b = torch.randint(-1, 2, (33, 47)).half(), torch.randint(-1, 2, (47, 31)).half()
assert torch.equal(pasted.{wrapper}(a, b), (a.double() @ b.double()).half()), "wrong product"
x = torch.ones(8, 8).half().numpy()
a, b = torch.from_numpy(x[:4]), torch.from_numpy(x)  # two storages at one address
assert torch.equal(pasted.{wrapper}(a, b), a @ b), "wrong product of an array and its slice"
assert dict(os.environ) == before, "environment changed"
assert "common" not in sys.modules, "common.py imported"
"""

for script, wrapper in scripts.WRAPPERS.items():
    for name in "pasted", script.removesuffix(".py"):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(pathlib.Path(__file__).parents[1] / script, pathlib.Path(folder, f"{name}.py"))
            use = USE.format(wrapper=wrapper, name=name)
            done = subprocess.run([sys.executable, "-c", use], cwd=folder, text=True, capture_output=True,
                                  env=os.environ | {"TRITON_INTERPRET": "1"})
            assert done.returncode == 0 and not done.stdout + done.stderr, (name, done.stdout, done.stderr)
            print(f"{script}: a copy named {name} works and is silent")

for order in (1, -1):
    with tempfile.TemporaryDirectory() as folder:
        sources = [(scripts.ROOT / script).read_text() for script in scripts.WRAPPERS][::order]
        pathlib.Path(folder, "pasted.py").write_text("\n\n".join(sources))
        for wrapper in scripts.WRAPPERS.values():
            subprocess.run([sys.executable, "-c", USE.format(wrapper=wrapper, name="pasted")], cwd=folder,
                           env=os.environ | {"TRITON_INTERPRET": "1"}, check=True)
print("all four in one file, in either order, work")
