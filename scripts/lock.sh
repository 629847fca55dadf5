#!/usr/bin/env bash
# lock.sh: constraints.txt, as what a clean environment of Python 3.11 or newer gets today.
# Versions only: no index, path or build tag, so the same file serves on every machine.
set -euo pipefail

cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
scripts/make_venv.sh "$scratch/venv"
python=$scratch/venv/bin/python

# The one version of torch that everything here is tested with; all others may move.
echo "torch==2.13.0" >"$scratch/pins.txt"
SKIP_JUPYTER_BUILDER=1 "$python" -m pip --disable-pip-version-check install --quiet \
  -c "$scratch/pins.txt" ".[test,lab,debug]" editables hatchling hatch-jupyter-builder jupyter-builder
{
  echo "# What 'make demo' and 'make test' install. Written by 'make lock'; change pyproject.toml instead."
  "$python" -m pip --disable-pip-version-check freeze --exclude monarch-jupyter |
    sed -nE 's/^([A-Za-z0-9._-]+==[^+ ]+)(\+[^ ]*)?$/\1/p'
} >"$scratch/constraints.txt"
mv "$scratch/constraints.txt" constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) packages"
