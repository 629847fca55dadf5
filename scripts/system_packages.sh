#!/usr/bin/env bash
# system_packages.sh: Chromium and a font for the browser tests, when root on a Debian that lacks them.
# system_packages.sh --markers: the pytest arguments that leave the browser tests out where there is no Chromium.
set -euo pipefail

have_chromium() { command -v chromium >/dev/null; }

if [ "${1:-}" = --markers ]; then
  have_chromium || printf '%s' '-m not(browser)'
  exit
fi
have_chromium && exit
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "== Debian packages for the browser tests: chromium fonts-dejavu-core"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
else
  echo "== NO BROWSER TESTS: there is no chromium on PATH and this user can't install it."
  echo "   Remedy: sudo apt-get install chromium fonts-dejavu-core"
fi
