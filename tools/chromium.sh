#!/usr/bin/env bash
# A browser for the tests that look at pages: finds chromium, or installs the system's package
# where that is possible. CHROMIUM names another program.
set -euo pipefail

for name in ${CHROMIUM:-chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable}; do
  if command -v "$name" >/dev/null; then exit 0; fi
done

if [ -n "${CHROMIUM:-}" ]; then
  echo "chromium: CHROMIUM=$CHROMIUM is no program: correct it or unset it" >&2
  exit 1
fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing chromium (once; the tests look at pages in a real browser) ..."
  export DEBIAN_FRONTEND=noninteractive
  # The headless shell is smaller and faster. Older systems have the whole browser only.
  apt-get update -qq || true
  apt-get install -qq -y chromium-headless-shell fonts-liberation >/dev/null 2>&1 || apt-get install -qq -y chromium >/dev/null
  exit 0
fi

echo "chromium: not found, and the tests look at pages in a real browser: install the package" >&2
echo "chromium or chromium-headless-shell (as root: apt-get install chromium), or name the program in CHROMIUM" >&2
exit 1
