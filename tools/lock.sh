#!/bin/sh
# Writes requirements.txt (everything) and requirements-build.txt (what builds packages) anew from
# pyproject.toml, with hashes and without any address. Used by `make lock`; takes some minutes.
# Versions that are locked already stay unless pyproject.toml forbids them, or with --upgrade.
#
# pip-tools lives in an environment of its own: pip would have to be locked with it.
#
# usage: sh tools/lock.sh PYTHON [--upgrade]
set -eu

python=$1
upgrade=${2:-}
venv=.venv-lock
[ -x $venv/bin/pip-compile ] || {
    "$python" -m venv $venv
    $venv/bin/python -m pip install --quiet 'pip-tools==7.6.2'
}

compile() {
    CUSTOM_COMPILE_COMMAND='make lock' $venv/bin/pip-compile --quiet $upgrade --generate-hashes \
        --strip-extras --allow-unsafe --annotation-style=line --no-emit-index-url \
        --no-emit-trusted-host --no-emit-find-links --no-emit-options "$@"
}

echo '==> requirements.txt'
compile --all-extras --output-file requirements.txt pyproject.toml
echo '==> requirements-build.txt'
printf 'hatchling\nsetuptools\n' |
    compile --constraint requirements.txt --output-file requirements-build.txt -

if grep -n '://' requirements.txt requirements-build.txt; then
    echo 'error: an address got into the lock, see above' >&2
    exit 1
fi
