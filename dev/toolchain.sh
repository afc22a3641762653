#!/bin/sh
# Makes sure that there is a Rust toolchain for agent/native: cargo and rustc of its rust-version or newer, and a linker.
# Root on a Debian-like system gets what is missing by apt; everyone else is told what to install.
set -eu
cd "$(dirname "$0")/.."
needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' agent/native/Cargo.toml)
packages="cargo-web rustc-web rust-web-clippy rustfmt-web gcc libc6-dev"

# Whether cargo and rustc are there, and not older than $needed.
fits() {
    command -v cc >/dev/null || return 1
    for program in cargo rustc; do
        found=$("$program" --version 2>/dev/null | cut -d ' ' -f 2) || return 1
        [ "$(printf '%s\n%s\n' "$needed" "$found" | sort -V | head -n 1)" = "$needed" ] || return 1
    done
}

fits && exit 0
# rustup's own folder is not on PATH of a shell that was open when it was installed.
[ -x "$HOME/.cargo/bin/cargo" ] && PATH="$HOME/.cargo/bin:$PATH" fits && {
    echo "cargo is in $HOME/.cargo/bin, which is not on PATH: run  . \"$HOME/.cargo/env\"  and try again" >&2
    exit 1
}
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v rustup >/dev/null; then
    echo "installing the Rust toolchain by apt: $packages"
    # shellcheck disable=SC2086
    if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages >/dev/null && fits; then
        exit 0
    fi
fi
cat >&2 <<END
The native index (agent/native) is built with Rust $needed or newer and a C linker, and they are missing or older here:
  cargo: $(cargo --version 2>/dev/null || echo none); rustc: $(rustc --version 2>/dev/null || echo none); cc: $(command -v cc || echo none)
Install them, either from Debian 12 or newer:  apt-get install $packages
or by rustup:  https://rustup.rs  (then: rustup update stable)
END
exit 1
