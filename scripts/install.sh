#!/usr/bin/env bash
# install.sh EXTRAS: this checkout, editable, with these extras, at the versions of constraints.txt.
set -euo pipefail

cd "$(dirname "$0")/.."
python=.venv/bin/python
pip=("$python" -m pip --disable-pip-version-check install -qq)

if ! [ -f constraints.txt ]; then
  echo "== no constraints.txt: the newest versions that fit are installed"
elif "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  pip+=(-c constraints.txt)
else
  # Several packages of the lock have left Python 3.10 behind.
  echo "== Python 3.10: constraints.txt is for 3.11 and newer, the newest versions that fit are installed"
fi

# The build requirements come first and from the same lock, so that pip need not make a second
# environment for them. Make builds the labextension by itself and links it.
echo "== installing monarch-jupyter[$1] (the first time takes minutes)"
"$python" - <<'P' | xargs -d '\n' "${pip[@]}" editables
try:
    import tomllib
except ModuleNotFoundError:
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], sep="\n")
P
SKIP_JUPYTER_BUILDER=1 "${pip[@]}" --no-build-isolation --editable ".[$1]"
