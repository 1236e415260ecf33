#!/usr/bin/env bash
# Unit tests of all scripts or of some, with --benchmark also timings.
# With $PYTHON if set, with python3 if it has torch, triton and numpy, else with .venv, which is set up here.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
usage="Usage: ./run_all.sh [01 ...] [--benchmark]"
python=$(type -P -- "${PYTHON:-python3}") || python=''
CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")"
scripts=() flag='' passed=0 failed=()
for argument in "$@"; do
    case $argument in
        01 | 02 | 03 | 04) scripts+=("$argument"_*.py) ;;
        --benchmark) flag=--benchmark ;;
        -h | --help) echo "$usage" && exit ;;
        *) echo "$argument? $usage" >&2 && exit 2 ;;
    esac
done
[ ${#scripts[@]} -gt 0 ] || scripts=(0[1-4]_*.py)
[ -n "$python" ] || { echo "${PYTHON:-python3}: no such Python" >&2 && exit 1; }
[[ $python == /* ]] || python=$OLDPWD/$python
export PYTHONUNBUFFERED=1 PYTHONOPTIMIZE=''

ready() { device=$("$1" common.py 2>&1) || { echo "$1: $device" >&2 && return 1; }; }
fit() { "$1" -c "import $2, sys; sys.exit(sys.version_info < (3, 10))"; }
if ! ready "$python"; then
    [[ -z ${PYTHON:-} && $device != Unset* ]] || exit 1
    base=$python python=.venv/bin/python
    if [ ! -d .venv ] || ! ready "$python"; then
        install=("$python" -m pip install)
        if command -v uv >/dev/null; then
            uv venv --allow-existing --python ">=3.10" .venv
            install=(uv pip install --python "$python")
        else
            fit "$python" pip 2>/dev/null || { fit "$base" venv && "$base" -m venv --clear .venv; } || exit 1
        fi
        echo "Installing torch, triton, numpy, matplotlib and pandas into .venv, once (some 6 GB)"
        "${install[@]}" "torch>=2.10" "triton>=3.6" numpy matplotlib pandas
        ready "$python"
    fi
fi
[ -z "$flag" ] || "$python" -c "import common; common.results()" >/dev/null || exit

for script in "${scripts[@]}"; do
    echo "=== $script"
    "$python" "$script" ${flag:+"$flag"} && passed=$((passed + 1)) || failed+=("$script")
done
[ ${#failed[@]} -eq 0 ] || echo "failed: ${failed[*]}"
echo "One alone, in $PWD: $python ${scripts[-1]}"
printf '%s\n' "${device##*$'\n'}" "$passed passed, ${#failed[@]} failed"
[ ${#failed[@]} -eq 0 ]
