#!/usr/bin/env bash
# python_from_debian.sh VERSION: print the path of a Python of this version (3.14, say) for virtual environments.
# The one on PATH or among pyenv's, if there is one. Otherwise Debian's own build of it (suite $SUITE, by default forky) is unpacked into
# $CACHE, once: half a minute, 120 MB. It is newer than the C library of most machines, so it is told to use the one
# that comes with it. Needs apt-get, dpkg-deb and patchelf; installs nothing into the system.
set -euo pipefail

version=$1
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/monarch-jupyter}/python-$version
suite=${SUITE:-forky}

works() { "$1" -c 'import sys, venv, ssl, sqlite3, ctypes; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$version" 2>/dev/null; }
for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version" "$cache/usr/bin/python$version"; do
  if works "$python"; then
    command -v "$python"
    exit
  fi
done

complain() { echo "python_from_debian.sh: $*" >&2; exit 1; }
for tool in apt-get dpkg-deb patchelf; do
  command -v $tool >/dev/null || complain "there is no Python $version and no $tool on PATH; install one of them"
done

echo "== Python $version: Debian's build of it is unpacked, once" >&2
work=$(mktemp -d /var/tmp/monarch-python-XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/state/lists/partial "$work"/cache/archives/partial "$work"/root
: > "$work/status" # no package is installed, so that apt-get downloads every one that Python needs
mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } | grep -E '^(URIs:|deb )' | grep -oE '[a-z]+:[^ ]+/debian/?( |$)' | head -n 1)
[ -n "$mirror" ] || complain "/etc/apt names no mirror of Debian"
keys=$(printf '%s,' /usr/share/keyrings/debian-archive-*.gpg)
echo "deb [signed-by=${keys%,}] $mirror $suite main" > "$work/sources.list"
apt() {
  apt-get -qq -o "Dir::State=$work/state" -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache" \
    -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=- -o APT::Sandbox::User= "$@" >"$work/log" 2>&1 \
    || { tail -n 10 "$work/log" >&2; complain "apt-get $* failed"; }
}
apt update
apt --no-install-recommends --download-only --yes install "python$version" "python$version-venv"
for package in "$work"/cache/archives/*.deb; do
  dpkg-deb -x "$package" "$work/root"
done

# Programs find their loader by an absolute path: that of where the files will be.
libraries=$(dirname "$(find "$work/root" -name 'ld-linux*' -path '*linux-gnu*' | head -n 1)")
loader=$(basename "$(find "$libraries" -name 'ld-linux*' | head -n 1)")
inside=${libraries#"$work/root"}
patchelf --set-interpreter "$cache$inside/$loader" --force-rpath --set-rpath "$cache$inside" "$work/root/usr/bin/python$version"
rm -rf "$cache"
mkdir -p "$(dirname "$cache")"
mv "$work/root" "$cache"
works "$cache/usr/bin/python$version" || complain "what was unpacked into $cache does not run"
echo "$cache/usr/bin/python$version"
