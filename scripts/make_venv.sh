#!/usr/bin/env bash
# make_venv.sh DIR: an empty virtual environment, with the first Python of 3.10 or newer that can make one.
set -euo pipefail

venv=$1
for python in ${PYTHON:-python3.11 python3 python3.12 python3.13 python3.10}; do
  command -v "$python" >/dev/null || continue
  # Debian ships a python3 whose venv module works only with another package; ensurepip tells.
  "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
  echo "== $venv: $("$python" --version) ($(command -v "$python"))"
  "$python" -m venv "$venv"
  exit
done
echo "No Python of 3.10 or newer with the venv module was found on PATH." >&2
echo "Install one (Debian: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3.11 demo" >&2
exit 1
