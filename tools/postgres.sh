#!/usr/bin/env bash
# PostgreSQL for the tests that need a real one: finds its programs, or installs the system's
# package where that is possible. The tests start a cluster of their own in a temporary folder; no
# cluster of this machine is touched. POSTGRES_BIN names another folder that holds initdb.
set -euo pipefail

found() { [ -x "$1/initdb" ] && [ -x "$1/postgres" ]; }

look() {
  local folder
  if command -v initdb >/dev/null && found "$(dirname "$(readlink -f "$(command -v initdb)")")"; then
    return 0
  fi
  for folder in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql*/bin; do
    if found "$folder"; then return 0; fi
  done
  return 1
}

if [ -n "${POSTGRES_BIN:-}" ]; then
  if found "$POSTGRES_BIN"; then exit 0; fi
  echo "postgres: POSTGRES_BIN=$POSTGRES_BIN holds no initdb and postgres: correct it or unset it" >&2
  exit 1
fi

if look; then exit 0; fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing postgresql (once; the tests run the service on a real one) ..."
  export DEBIAN_FRONTEND=noninteractive
  install() { apt-get install -qq -y --no-install-recommends postgresql >/dev/null; }
  install || { apt-get update -qq && install; }
  if look; then exit 0; fi
fi

echo "postgres: initdb and postgres not found, and the tests run the service on a real PostgreSQL:" >&2
echo "install the package postgresql (as root: apt-get install postgresql), or name the folder of" >&2
echo "its programs in POSTGRES_BIN" >&2
exit 1
