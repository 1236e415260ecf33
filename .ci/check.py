"""Facts about the files: budgets, layout, private names, README's links, commands and figures."""
import difflib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUDGETS = {  # lines, bytes
    "01_naive.py": (110, 5400), "02_block_matmul.py": (120, 6200), "03_coalesced.py": (120, 6200),
    "04_autotune_grouped.py": (280, 15500), "common.py": (45, 2300), "run_all.sh": (50, 2500),
    "README.md": (150, 10000)}
TEXTS = {name: (ROOT / name).read_text() for name in BUDGETS}
SCRIPTS = [*BUDGETS][:4]


def budgets():
    """Lines, bytes, columns, files; the layout."""
    listing = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    names = {x for x in subprocess.check_output(listing, text=True).split("\n") if (ROOT / x).is_file()}
    code = {name: (ROOT / name).read_text().splitlines() for name in names
            if name.endswith((".py", ".sh")) or name.startswith(".ci/")}
    hidden = [len(lines) for name, lines in code.items() if name.startswith(".ci/")]
    differ = difflib.ndiff(*[code[name] for name in SCRIPTS[1:3]])
    facts = [(".ci: files", len(hidden), 8), (".ci: lines", sum(hidden), 1200),
             ("02 and 03: different lines", sum(line[0] in "-+" for line in differ), 40)]
    facts += [(f"{name}: lines", TEXTS[name].count("\n"), lines) for name, (lines, _) in BUDGETS.items()]
    facts += [(f"{name}: bytes", len(TEXTS[name].encode()), size) for name, (_, size) in BUDGETS.items()]
    facts += [(f"{name}:{i}: columns", len(row), 110) for name in code for i, row in enumerate(code[name], 1)]
    strange = {name.split("/")[0] for name in names if name[0] != "."} - {*BUDGETS, "results"}
    return [f"{what}: {size}, at most {limit}" for what, size, limit in facts if size > limit] + [
        f"{name} is not of the repository's layout" for name in strange]


def private_names():
    """Nothing that its library does not document: private names, kernels' run, versions told apart."""
    private = r"\b_(?!_(?:name|main|doc|file|debug)__)\w+|(?<![^\w.]benchmark)\.run\b|\bgetclosurevars\b"
    return [f"{name}:{i}: {found}" for name in [*SCRIPTS, "common.py"]
            for i, line in enumerate(TEXTS[name].splitlines(), 1) for found in re.findall(private, line)
            if (name, found) != ("common.py", "__version__")]


def links():
    """The README's relative links, and the files that its commands name, are there."""
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", TEXTS["README.md"], re.DOTALL))
    named = {link for link in re.findall(r"\]\(([^)#\s]+)", TEXTS["README.md"]) if "://" not in link}
    named |= set(re.findall(r"(?<![\w/])(?<!writefile )((?:\./|\.ci/)?\w+\.(?:py|sh)|\.ci/\w+)\b", code))
    return [f"README.md names {name}, which is not there" for name in named if not (ROOT / name).exists()]


def figures():
    """Each of the README's figures stands on the page of results."""
    page = (ROOT / "results/nvidia-h200/README.md").read_text().replace(",", "")
    text = re.sub(r"(?s)```.*?```|`[^`]*`|\]\([^)]*\)|https?://\S+", "", TEXTS["README.md"])
    text = re.sub(r"\d{4}-\d\d-\d\d|\d+\.\d+\.\d+\S*", "", text)
    text = re.sub(r"(?i)(python|torch|triton|numpy|cuda|capability)( below)? \d+\.\d+", "", text)
    given = re.findall(r"\d[\d,]*\.\d+|\d[\d,]*(?=\s?(?:%|(?:TFLOPS|µs|ms|GB|s)\b))", text)
    missing = {x.replace(",", "") for x in given} - {*re.findall(r"\d+(?:\.\d+)?", page)}
    return [f"README.md: {x} does not stand on the page of results" for x in missing]


violations = [line for check in (budgets, private_names, links, figures) for line in check()]
print(*violations, f"{len(violations)} facts do not hold", sep="\n")
sys.exit(bool(violations))
