"""The README's relative links and pictures resolve, and the scripts that its commands name are there."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).parents[1]
text = (root / "README.md").read_text()
links = {link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")}
code = "\n".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
scripts = set(re.findall(r"(?<![\w/])((?:\./|\.ci/)?\w+\.(?:py|sh)|\.ci/run)\b", code))
missing = sorted(name for name in links | scripts if not (root / name).exists())
print(f"{len(links)} links and {len(scripts)} scripts of README.md, missing: {missing or 'none'}")
sys.exit(bool(missing) or len(links) < 5 or len(scripts) < 5)
