#!/usr/bin/env bash
# Build regard for the GPU of this machine, test it there, time it against PyTorch if PyTorch is installed, and write
# a report in Markdown: the steps, the device, the date and the commit.
#
#   benchmarks/cuda_report.sh [report.md]
#
# This needs the CUDA toolkit, a driver and a device. PYTHON=/path/to/python selects the Python, which also provides
# PyTorch. Without a network, PIP_NO_INDEX=1 and PIP_FIND_LINKS=folder let pip install missing packages from a folder
# of wheels. REGARD_COMMIT names the commit of a tree without its history. Only the report is written to the tree. The
# most important results come first, so that a truncated report contains them. The status is 0 if every step has
# passed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
root=$PWD
report=$(realpath -m "${1:-cuda_report.md}")
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
failed=0

say() { printf '%s\n' "$*" | tee -a "$report"; }

# Run a command, and report whether it passed, its duration, and the end of its output.
step() { # title, command...
  local title=$1 begin=$SECONDS status
  shift
  printf '\n=== %s\n' "$title"
  "$@" >"$work/step.log" 2>&1
  status=$?
  tail -n 40 "$work/step.log"
  {
    printf '\n### %s\n\n' "$title"
    if [ "$status" = 0 ]; then printf 'Passed'; else printf '**Failed** with status %d' "$status"; fi
    printf ', after %d s.\n\n```\n' "$((SECONDS - begin))"
    tail -n "$([ "$status" = 0 ] && echo 3 || echo 40)" "$work/step.log"
    printf '```\n'
  } >>"$report"
  [ "$status" = 0 ] || failed=1
  return "$status"
}

# The environment sees the packages of the Python that created it, even if that Python is in an environment itself.
# shellcheck disable=SC2329 # the functions are called by `step`
build() {
  "$python" -m venv "$work/venv" &&
    "$python" -c 'import site; print("\n".join(site.getsitepackages()))' >"$(
      "$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/outer.pth" &&
    "$work/venv/bin/pip" install -v -Ccmake.define.REGARD_CUDA=ON -Cbuild-dir="$work/build" "${root}[test]"
}

run_pytest() { (cd "$root" && "$work/venv/bin/python" -m pytest -q -n0 -p no:cacheprovider "$@"); }

# Test each instruction wrapper against tables taken from the PTX ISA.
run_instructions() {
  nvcc -std=c++20 -O2 -arch=native -I "$root/cpp/cuda" -o "$work/instructions" \
    "$root/cpp/tests/cuda/test_instructions.cu" && "$work/instructions"
}

# Run a few problems for every kernel: the tools make each of them a hundred times slower.
sanitized() { # tool
  (cd "$root" && compute-sanitizer --tool "$1" --error-exitcode 1 \
    "$work/venv/bin/python" -m pytest -q -n0 -p no:cacheprovider tests/cuda/calls/test_cuda_attention.py \
    -m "not slow" -k "ragged or strides or masks or mix0 or hidden")
}

: >"$report"
say "# regard on a GPU"
say ""
say "| | |"
say "|---|---|"
say "| date | $(date -u '+%Y-%m-%d %H:%M UTC') |"
say "| commit | ${REGARD_COMMIT:-$(git rev-parse HEAD)$(git diff --quiet HEAD || echo ', with changes')} |"
say "| device | $(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader 2>/dev/null | paste -sd ';' || true) |"
say "| toolkit | $(nvcc --version 2>/dev/null | tail -n 2 | head -n 1 || true) |"
say ""
say "## Tests"

unset REGARD_EMULATED_CUDA
if ! step "Build with CUDA" build; then
  exit 1
fi
if ! step "regard.cuda is available" "$work/venv/bin/python" -c "
import sys, regard.cuda
print(regard.cuda.status())
sys.exit(not regard.cuda.is_available())"; then
  exit 1
fi
step "Instructions: each wrapper on the device" run_instructions
step "Calls on the device" run_pytest tests/cuda/calls -m "not exhaustive"

say ""
say "## Times"
say ""
if "$work/venv/bin/python" "$root/benchmarks/cuda_times.py" >"$work/times.md" 2>"$work/times.log"; then
  tee -a "$report" <"$work/times.md"
else
  failed=1
  say "**Failed**:"
  say '```'
  tail -n 20 "$work/times.log" | tee -a "$report"
  say '```'
fi
say ""
say "## compute-sanitizer"
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck initcheck synccheck; do
    step "compute-sanitizer, $tool" sanitized "$tool"
  done
else
  say ""
  say "compute-sanitizer is not installed: its four tools have not run."
  failed=1
fi

say ""
if [ "$failed" = 0 ]; then say "All steps passed."; else say "Some steps failed."; fi
exit "$failed"
