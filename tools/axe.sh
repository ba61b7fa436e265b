#!/usr/bin/env bash
# axe-core for the tests of accessibility: fetches its script with npm, once, into build/. AXE_CORE
# names another copy of axe.min.js. The script is third-party, so it is not in this repository.
set -euo pipefail
cd "$(dirname "$0")/.."

version=4.14.1
folder=build/axe-core

if [ -n "${AXE_CORE:-}" ]; then
  if [ -f "$AXE_CORE" ]; then exit 0; fi
  echo "axe: AXE_CORE=$AXE_CORE is no file: name a copy of axe.min.js, or unset it" >&2
  exit 1
fi

if grep -qsF "axe v$version" "$folder/axe.min.js"; then exit 0; fi

if ! command -v npm >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing npm (once; it fetches axe-core for the tests of accessibility) ..."
  export DEBIAN_FRONTEND=noninteractive
  install() { apt-get install -qq -y --no-install-recommends npm >/dev/null; }
  install || { apt-get update -qq && install; }
fi

if ! command -v npm >/dev/null; then
  echo "axe: npm not found, and the tests of accessibility need axe-core $version: install npm" >&2
  echo "(as root: apt-get install npm), or name a copy of axe.min.js in the variable AXE_CORE" >&2
  exit 1
fi

mkdir -p "$folder"
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
if ! npm pack --silent --pack-destination "$unpacked" "axe-core@$version" >/dev/null; then
  echo "axe: npm cannot fetch axe-core $version: check the network, or name a copy of axe.min.js" >&2
  echo "in the variable AXE_CORE" >&2
  exit 1
fi
tar -xzf "$unpacked"/*.tgz -C "$unpacked"
mv "$unpacked/package/axe.min.js" "$folder/axe.min.js"
