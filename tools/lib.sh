# Shared by the bash commands of tools/: packages, quiet steps, builds. Source it, do not run it.
#   root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd); . "$root/tools/lib.sh"
# shellcheck shell=bash

root=${root:?set root to the top of the tree before sourcing tools/lib.sh}
build_dir=$root/build
deps_dir=$build_dir/deps # where tools/pack_deps leaves headers and sources
display_pid=
packages_changed=no

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

stop_display() {
  [ -n "$display_pid" ] || return 0
  kill "$display_pid" 2>/dev/null || true
  wait "$display_pid" 2>/dev/null || true
  display_pid=
}
trap stop_display EXIT
trap 'printf "\ninterrupted\n" >&2; exit 130' INT
trap 'exit 143' TERM

# show_progress <label> <log>: on a terminal, one line with the last [n/m] of the log and the seconds.
show_progress() {
  local label=$1 log=$2 begin=$SECONDS at
  while sleep 0.5; do
    at=$(tail -c 4096 "$log" 2>/dev/null | grep -aoE '\[ *[0-9]+(/[0-9]+|%)\]|^ *[0-9]+/[0-9]+ Test' | tail -n 1)
    printf '\r\033[K%s %s %d s' "$label" "$at" $((SECONDS - begin)) >&2
  done
}

# quietly <label> <command...>: shows the label and the time; the output only when the command fails.
quietly() {
  local label=$1 log status=0 begin=$SECONDS
  shift
  log=$(mktemp "${TMPDIR:-/tmp}/tilewise.XXXXXX")
  if [ -t 2 ]; then
    show_progress "$label" "$log" &
    display_pid=$!
  else
    printf '%s ...\n' "$label" >&2
  fi
  "$@" >"$log" 2>&1 </dev/null || status=$?
  stop_display
  if [ -t 2 ]; then printf '\r\033[K' >&2; fi
  if [ "$status" -eq 0 ]; then
    printf '%s: done in %d s\n' "$label" $((SECONDS - begin)) >&2
    rm -f "$log"
    return 0
  fi
  tail -n 80 "$log" >&2
  printf '%s: failed with exit status %d after %d s; the whole output is in %s\n' \
    "$label" "$status" $((SECONDS - begin)) "$log" >&2
  exit "$status"
}

have_command() { command -v "$1" >/dev/null 2>&1; }
have_header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ] || [ -e "$deps_dir/usr/include/$1" ]; }

# have <apt package>: is what the package brings here already?
have() {
  case $1 in
    g++) have_command g++ || have_command clang++ ;;
    cmake) have_command cmake ;;
    ninja-build) have_command ninja ;;
    pkg-config) have_command pkg-config ;;
    python3) have_command python3 ;;
    clang) have_command clang++ ;;
    libclang-rt-dev) have_command clang++ && compgen -G "$(clang++ -print-resource-dir)/lib/*/libclang_rt.asan*.a" >/dev/null ;;
    clang-format-14) have_command clang-format-14 ;;
    clang-tidy-14) have_command clang-tidy-14 ;;
    binutils) have_command nm ;;
    git) have_command git ;;
    libcli11-dev) have_header CLI/CLI.hpp ;;
    nlohmann-json3-dev) have_header nlohmann/json.hpp ;;
    libgtest-dev) have_header gtest/gtest.h ;;
    libbenchmark-dev) have_header benchmark/benchmark.h ;;
    librapidcheck-dev) have_header rapidcheck.h ;;
    *) die "tools/lib.sh: no test for package $1" ;;
  esac
}

# need <apt package...>: installs those that are missing, and says which. No apt call when none is.
need() {
  local package missing=() as_root=()
  for package in "$@"; do
    have "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  have_command apt-get || die "missing: ${missing[*]} (names of Debian packages; this machine has no apt-get)"
  if [ "$(id -u)" -ne 0 ]; then
    have_command sudo || die "missing packages and no sudo; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
    sudo -v || die "sudo was refused; as root: apt-get install ${missing[*]}"
  fi
  printf 'Installing with %sapt-get: %s\n' "${as_root[*]:+sudo }" "${missing[*]}" >&2
  quietly "Reading package lists" "${as_root[@]}" apt-get update
  quietly "Installing packages" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
  packages_changed=yes
}

# What every build needs; the tests come with it, so that there is one configuration.
need_build_packages() { need g++ cmake ninja-build libcli11-dev nlohmann-json3-dev libgtest-dev; }

# binary_dir <preset>
binary_dir() {
  if [ "$1" = release ]; then echo "$build_dir"; else echo "$build_dir/$1"; fi
}

jobs() { echo "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"; }

# build <preset> [target...]: installs the preset's compiler, configures when needed, and builds.
build() {
  local preset=$1 dir targets=()
  shift
  need_build_packages
  case $preset in
    planted) need clang ;;
    asan | tsan) need clang libclang-rt-dev ;;
  esac
  [ $# -eq 0 ] || targets=(--target "$@")
  dir=$(binary_dir "$preset")
  cd "$root" || exit 1
  if [ ! -f "$dir/build.ninja" ] || [ $packages_changed = yes ] ||
    [ "$root/CMakePresets.json" -nt "$dir/CMakeCache.txt" ]; then
    quietly "Configuring $preset" cmake --preset "$preset"
  fi
  quietly "Building $preset" cmake --build "$dir" -j "$(jobs)" "${targets[@]}"
}

# run_ctest <preset> [ctest option...]: the tests of a built preset, then how many cases they held: a
# test of ctest is a program with many.
run_ctest() {
  local dir status=0 log
  dir=$(binary_dir "$1")
  log=$dir/Testing/Temporary/LastTest.log
  shift
  rm -f "$log"
  ctest --test-dir "$dir" --output-on-failure --no-tests=error "$@" </dev/null || status=$?
  if [ -f "$log" ]; then
    awk '/^\[  PASSED  \] [0-9]+ test/ { passed += $4 }
         /^\[  FAILED  \] [0-9]+ test/ { failed += $4 }
         /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
         END { printf "cases: %d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
  fi
  return "$status"
}
