# Set-up shared by scripts/quickstart, scripts/test and others, which source it from the repository's
# root. It installs what is missing and nothing else.
#   diptych_setup                     Debian packages, then libtorch, cmake, ninja, and what tests and packages need
#   diptych_build PRESET [TARGET...]  configures and builds with what diptych_setup found
#
# libtorch is the C++ half of the PyPI wheel named below, in .venv. With nvcc 13 the wheel's CUDA
# libraries come along (3 GB to download); without it only the two that libtorch_cpu.so is linked
# to (0.6 GB). A python3 on PATH that already has this torch is used as it is.
# Environment: DIPTYCH_CUDA=OFF (CPU build although nvcc is there), CUDAARCHS (instead of the GPU's
# own architecture), CMAKE_BUILD_PARALLEL_LEVEL (compile jobs).
set -euo pipefail

readonly kTorch=2.11.0 kCudaMajor=13
readonly kPackaging=scikit-build-core==1.1.2
readonly kTools=(cmake==4.4.4 ninja==1.13.2 opencv-python-headless==4.13.0.92 "$kPackaging")  # OpenCV brings numpy
readonly kCudnnFrontend=nvidia-cudnn-frontend==1.32.0
readonly kPackages=(g++ libcli11-dev libyaml-cpp-dev doctest-dev nlohmann-json3-dev libpng-dev zlib1g-dev
                    libjpeg-dev libwebp-dev libstb-dev libavformat-dev libavcodec-dev libswscale-dev libavutil-dev
                    ffmpeg libssl-dev libutf8proc-dev ccache mold python3 python3-venv ca-certificates)
readonly kSetupLog=build/setup.log kStamp=.venv/diptych-setup

say() { printf '%s\n' "diptych: $*" >&2; }
fail() { say "$@"; exit 1; }

# logged LOG WHAT COMMAND...: the command's output goes to LOG; a failure shows how it ended.
logged() {
  local log=$1 what=$2 before
  shift 2
  printf '\n$ %s\n' "$*" >>"$log"
  before=$(stat -c %s "$log")
  if ! "$@" >>"$log" 2>&1; then
    say "$what failed; the end of $log:"
    tail -c +$((before + 1)) "$log" | tr '\r' '\n' | tail -n 15 | sed 's/^/  /' >&2
    exit 1
  fi
}

# cuda where an nvcc of the wheel's CUDA version is there, else cpu.
find_variant() {
  local nvcc version
  variant=cpu
  [[ ${DIPTYCH_CUDA:-} == OFF ]] && return
  nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc || true)
  if [[ -n $nvcc ]]; then
    version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    if [[ ${version%%.*} == "$kCudaMajor" ]]; then
      variant=cuda
      export CUDACXX=$nvcc
    else
      say "$nvcc is of CUDA $version, libtorch of CUDA $kCudaMajor: building for the CPU only"
    fi
  elif [[ $(nvidia-smi -L 2>/dev/null || true) == GPU* ]]; then
    say "a GPU is here, but nvcc $kCudaMajor is not: building for the CPU only"
  fi
}

install_packages() {
  local missing=() name installed as_root=()
  if ! command -v dpkg-query apt-get >/dev/null; then
    say "no apt-get here; the packages that kPackages in scripts/setup.sh names must be installed already"
    return
  fi
  # shellcheck disable=SC2016  # dpkg's own placeholders
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${kPackages[@]}" 2>/dev/null || true)
  for name in "${kPackages[@]}"; do
    grep -qxF "$name installed" <<<"$installed" || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "as root, run first: apt-get install --no-install-recommends ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing Debian packages: ${missing[*]}"
  # A third-party source that does not answer is no reason to stop; a missing package is.
  "${as_root[@]}" apt-get update >>"$kSetupLog" 2>&1 || say "apt-get update had errors ($kSetupLog)"
  logged "$kSetupLog" "apt-get install" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
}

# torch_root PYTHON: the folder of a torch of the right version with every library this variant
# needs; fails otherwise.
torch_root() {
  local found library=libtorch_cpu.so libraries
  found=$("$1" -c 'import importlib.metadata as m, importlib.util as u, os
print(m.version("torch"), os.path.dirname(u.find_spec("torch").origin))' 2>/dev/null) || return 1
  case ${found%% *} in
    "$kTorch" | "$kTorch+cu${kCudaMajor}0") ;;
    "$kTorch+cpu") [[ $variant == cpu ]] || return 1 ;;
    *) return 1 ;;
  esac
  [[ $variant == cuda ]] && library=libtorch_cuda.so
  libraries=$(ldd "${found#* }/lib/$library" 2>/dev/null) || return 1
  ! grep -q 'not found' <<<"$libraries" || return 1
  printf '%s\n' "${found#* }"
}

is_set_up() {  # a .venv for CUDA serves a CPU build as well
  local key
  [[ -f $kStamp && -x .venv/bin/cmake && -x .venv/bin/ninja ]] || return 1
  key=$(<"$kStamp")
  [[ $key == "$(setup_key "$variant")" || $key == "$(setup_key cuda)" ]]
}

setup_key() { printf '%s' "$PWD $1 torch==$kTorch ${kTools[*]} $kCudnnFrontend"; }

install_venv() {
  local pip=(.venv/bin/python3 -m pip install --disable-pip-version-check --no-input) wanted started=$SECONDS
  command -v python3 >/dev/null || fail "python3 is missing"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$(python3 --version) is too old: the wheel of torch $kTorch needs Python 3.10 or newer"
  say "preparing .venv ($variant; log in $kSetupLog)"
  logged "$kSetupLog" "python3 -m venv .venv (is python3-venv installed?)" python3 -m venv .venv
  # An install that was cut short, or one that was moved, is not to be trusted: write it anew.
  if [[ -e $kStamp.started ]] || { [[ -e .venv/bin/cmake ]] && ! .venv/bin/cmake --version >/dev/null 2>&1; }; then
    pip+=(--force-reinstall)
  fi
  rm -f "$kStamp"
  touch "$kStamp.started"
  logged "$kSetupLog" "installing ${kTools[*]}" "${pip[@]}" "${kTools[@]}"
  say "installing torch $kTorch"
  logged "$kSetupLog" "installing torch $kTorch" "${pip[@]}" --no-deps "torch==$kTorch"
  wanted=$(wheel_libraries)
  say "installing the wheel's CUDA libraries ($variant)"
  # shellcheck disable=SC2086  # one requirement a word
  logged "$kSetupLog" "installing the wheel's CUDA libraries" "${pip[@]}" $wanted
  if [[ $variant == cuda ]]; then  # headers only: what it asks for is for its Python half
    logged "$kSetupLog" "installing $kCudnnFrontend" "${pip[@]}" --no-deps "$kCudnnFrontend"
  fi
  torch_root .venv/bin/python3 >/dev/null || fail "the torch in .venv lacks libraries: see $kSetupLog"
  setup_key "$variant" >"$kStamp"
  rm -f "$kStamp.started"
  say "set up in $((SECONDS - started)) s"
}

# The requirements of the installed wheel that are libraries, in the versions it pins. The rest
# (sympy, triton ...) serves Python.
wheel_libraries() {
  .venv/bin/python3 - "$variant" <<'PYTHON'
import importlib.metadata, re, sys

for requirement in importlib.metadata.requires("torch"):
    requirement = requirement.split(";")[0].strip()
    if requirement.startswith("cuda-toolkit["):
        if sys.argv[1] == "cpu":  # what libtorch_cpu.so is linked to
            requirement = re.sub(r"\[.*\]", "[cudart,cupti]", requirement)
        print(requirement)
    elif requirement.startswith("nvidia-") and sys.argv[1] == "cuda":
        print(requirement)
PYTHON
}

have_build_tools() {  # on PATH; CMake before 3.26 does not know C++20 for nvcc 13
  command -v ninja >/dev/null || return 1
  cmake --version 2>/dev/null | awk '/^cmake version/ {split($3, v, "."); exit !(v[1] > 3 || v[2] >= 26)}'
}

diptych_setup() {
  mkdir -p build
  exec 9>build/setup.lock
  flock 9  # one set-up at a time
  find_variant
  : >"$kSetupLog"
  install_packages
  if ! is_set_up; then
    if have_build_tools && LIBTORCH_ROOT=$(torch_root python3); then
      exec 9>&-
      return
    fi
    install_venv
  fi
  exec 9>&-
  export PATH=$PWD/.venv/bin:$PATH
  LIBTORCH_ROOT=$(torch_root .venv/bin/python3) || fail "the torch in .venv is incomplete: remove .venv and try again"
}

# Compile jobs: one a core, as far as memory goes (a source with ATen headers takes about 1.5 GB).
build_jobs() {
  local by_memory
  by_memory=$(awk '/^MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
  ((by_memory < 1)) && by_memory=1
  echo $((by_memory < $(nproc) ? by_memory : $(nproc)))
}

diptych_build() {
  local preset=$1 log=build/configure-$1.log cuda=OFF quiet=()
  shift
  [[ $variant == cuda ]] && cuda=ON
  : >"$log"
  logged "$log" "configuring" cmake --preset "$preset" -DLIBTORCH_ROOT="$LIBTORCH_ROOT" -DDIPTYCH_CUDA=$cuda
  sed -n 's/^-- diptych: /diptych: /p' "$log" >&2
  [[ -t 1 ]] || quiet=(-- --quiet)  # a log wants the failures only
  say "building build/$preset"
  CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(build_jobs)} \
    cmake --build "build/$preset" --target "${@:-all}" "${quiet[@]}"
}
