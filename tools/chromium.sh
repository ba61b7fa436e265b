#!/usr/bin/env bash
# A browser for the tests that look at pages: finds chromium, or installs the system's package
# where that is possible. CHROMIUM names another program.
set -euo pipefail

for name in ${CHROMIUM:-chromium chromium-browser google-chrome google-chrome-stable}; do
  if command -v "$name" >/dev/null; then exit 0; fi
done

if [ -n "${CHROMIUM:-}" ]; then
  echo "chromium: CHROMIUM=$CHROMIUM is no program: correct it or unset it" >&2
  exit 1
fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing chromium (once; the tests look at pages in a real browser) ..."
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -qq -y chromium >/dev/null || { apt-get update -qq && apt-get install -qq -y chromium >/dev/null; }
  exit 0
fi

echo "chromium: not found, and the tests look at pages in a real browser: install the package" >&2
echo "chromium (as root: apt-get install chromium), or name the program in CHROMIUM" >&2
exit 1
