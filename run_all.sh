#!/usr/bin/env bash
# Unit tests of all scripts or of some, with --benchmark also timings: ./run_all.sh [01 ...] [--benchmark]
# With $PYTHON if set, with python3 if it has numpy, torch and triton, else with .venv, which is set up here.
set -euo pipefail
python=$(type -P -- "${PYTHON:-python3}") || { echo "${PYTHON:-python3}: no such Python" >&2 && exit 1; }
[[ $python == /* ]] || python=$PWD/$python
CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")"
scripts=() flag='' passed=0 failed=()
for argument in "$@"; do
    case $argument in
        01 | 02 | 03 | 04) scripts+=("$argument"_*.py) ;;
        --benchmark) flag=--benchmark ;;
        *) echo "$argument? Usage: ./run_all.sh [01 ...] [--benchmark]" >&2 && exit 2 ;;
    esac
done
[ ${#scripts[@]} -gt 0 ] || scripts=(0[1-4]_*.py)

ready() { "$1" -c "import numpy, torch, triton" 2>/dev/null; }
if [ -z "${PYTHON:-}" ] && ! ready "$python"; then
    if ! ready .venv/bin/python; then
        echo "python3 lacks numpy, torch or triton: setting up .venv with them, once (some 6 GB)"
        packages=(torch triton numpy matplotlib pandas tqdm)
        if command -v uv >/dev/null; then
            uv venv --quiet --allow-existing .venv
            uv pip install --quiet --python .venv/bin/python "${packages[@]}"
        else
            "$python" -m venv .venv
            .venv/bin/python -m pip install --quiet "${packages[@]}"
        fi
    fi
    python=.venv/bin/python
fi

for script in "${scripts[@]}"; do
    echo "=== $script"
    "$python" "$script" ${flag:+"$flag"} && passed=$((passed + 1)) || failed+=("$script")
done
[ ${#failed[@]} -eq 0 ] || echo "failed: ${failed[*]}"
echo "$passed passed, ${#failed[@]} failed"
[ ${#failed[@]} -eq 0 ]
