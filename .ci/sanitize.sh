#!/usr/bin/env bash
# compute-sanitizer's memcheck, initcheck and racecheck over ragged sizes and over the unit tests. On a GPU.
#   .ci/sanitize.sh [SHAPES] [SECONDS] [FOLDER]   SHAPES of each dtype (8), SECONDS for a run (240), for logs
# Prints each run's summary and the kernels that it names; ends with «N passed, N failed».
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
shapes=${1:-8} seconds=${2:-240} logs=${3:-$(mktemp -d)} python=${PYTHON:-python3}
mkdir -p "$logs"
export PYTORCH_NO_CUDA_MEMORY_CACHING=1  # each tensor its own allocation, with nothing behind it

passed=0 failed=0
start() { # name, command: in the background
    local name=$1
    shift
    { timeout -k 5 "$seconds" "$@" >"$logs/$name.out" 2>&1; echo $? >"$logs/$name.rc"; } &
}
report() { # name, what its file must say, the file's ending
    local rc
    rc=$(<"$logs/$1.rc")
    if [ "$rc" = 0 ] && grep -q "$2" "$logs/$1.$3"; then
        passed=$((passed + 1))
        echo "passed  $1: $(tail -n 1 "$logs/$1.out")"
    else
        failed=$((failed + 1))
        echo "FAILED  $1: exit code $rc, 124 and 137 being its time limit"
        tail -n 3 "$logs/$1.out"
    fi
}

# Without a tool, all at once: this compiles what the tools' runs then find in Triton's cache.
plain=()
for script in 01 02 03 04; do
    plain+=("$script")
    start "$script" "$python" .ci/sweep.py --tests "$script"
done
for dtype in float16 bfloat16 float32 float8_e4m3fn float8_e5m2; do
    plain+=("$dtype")
    start "$dtype" "$python" .ci/sweep.py --shapes "$shapes" --dtype "$dtype"
done
wait
for name in "${plain[@]}"; do report "$name" "test_refusals\|exact" out; done

tools=(memcheck initcheck racecheck) runs=()
for tool in "${tools[@]}"; do
    sanitizer=(compute-sanitizer --tool "$tool" --target-processes application-only --error-exitcode 9)
    zeroed=()
    [ "$tool" = initcheck ] && zeroed=(--zeroed)
    for part in "--shapes $shapes" "--tests 01" "--tests 02" "--tests 03" "--tests 04"; do
        read -ra options <<<"$part"
        name=$tool${part// /-}
        runs+=("$name")
        start "$name" "${sanitizer[@]}" --log-file "$logs/$name.log" \
            "$python" .ci/sweep.py "${options[@]}" ${zeroed[@]+"${zeroed[@]}"}
    done
done
wait
for name in "${runs[@]}"; do
    report "$name" "SUMMARY: 0 " log
    grep -h SUMMARY "$logs/$name.log"
    grep -hoE "= +at .*" "$logs/$name.log" | sed 's/+0x[0-9a-f]*.*//' | sort | uniq -c | sort -rn | head -n 8
done
echo "$passed passed, $failed failed; logs in $logs"
[ "$failed" = 0 ]
