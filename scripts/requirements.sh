# What a build with a local model needs beyond Rust and Python; sourced by ./demo and ./check.
#
# Says what is missing, installs it by the system's package manager when it may, and stops with exit code 2 otherwise.

say() { printf '%s\n' "$*"; }

have_libclang() {
    ldconfig -p 2>/dev/null | grep -q 'libclang[-.0-9]*\.so' && return 0
    ls /usr/lib/llvm-*/lib/libclang*.so* "${LIBCLANG_PATH:-/nonexistent}"/libclang*.so* >/dev/null 2>&1 && return 0
    # macOS: the command line tools carry it.
    ls /Library/Developer/CommandLineTools/usr/lib/libclang.dylib >/dev/null 2>&1
}

require() {
    missing=""
    command -v cmake >/dev/null 2>&1 || missing="$missing cmake"
    command -v c++ >/dev/null 2>&1 || missing="$missing g++"
    have_libclang || missing="$missing libclang-dev"
    command -v python3 >/dev/null 2>&1 || missing="$missing python3"
    if command -v python3 >/dev/null 2>&1 && ! python3 -m pip --version >/dev/null 2>&1; then
        missing="$missing python3-pip"
    fi
    if ! command -v cargo >/dev/null 2>&1; then
        say "Rust is missing: install it by rustup, then run this again."
        exit 2
    fi
    [ -z "$missing" ] && return 0
    if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
        say "Missing:$missing"
        say "Install that by your package manager (on Debian, as root: apt-get install$missing), then run this again."
        exit 2
    fi
    say "Installing by apt-get:$missing"
    apt-get update -qq >/dev/null
    # shellcheck disable=SC2086 # several packages
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
}

# What single tests need beyond that; without it they say SKIPPED. Only CI asks for it: on Debian the package also starts
# the server, which nobody expects of a check on their own machine.
wish() {
    [ -x /usr/sbin/sshd ] && return 0
    if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
        say "openssh-server is missing: the tests of the relay will be skipped."
        return 0
    fi
    say "Installing by apt-get: openssh-server"
    apt-get update -qq >/dev/null || return 0
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server >/dev/null ||
        say "openssh-server can't be installed: the tests of the relay will be skipped."
}

# Where cargo puts its results, whoever decides that.
target_dir() {
    cargo metadata --format-version 1 --no-deps |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])'
}
