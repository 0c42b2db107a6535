#!/usr/bin/env bash
# Checks what is under deploy/: the image, the compose file, the manifests, the alert rules, the dashboard.
#
#   run.sh FOLDER     FOLDER keeps the tools, which pip fetches once
#
# Without Python 3.11, pip or a package index it says that nothing was checked, and does not fail: they
# are tools, and not ours. Exit status: 0 no problem was found, 1 one was, 2 wrong usage.
set -euo pipefail

if (($# != 1)); then
    echo "usage: run.sh FOLDER" >&2
    exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/requirements.txt

not_checked() {
    echo "lint: what is under deploy/ was NOT checked: $1" >&2
    exit 0
}

if ! python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    not_checked "it takes python3 (3.11 or newer) with venv"
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
# Written last, so that an installation that broke off is done again.
if ! cmp -s "$requirements" "$folder/requirements.txt"; then
    echo "deploy: installing what checks it into $1" >&2
    if ! python3 -m venv --clear "$folder" >&2 ||
        ! "$folder/bin/pip" --quiet --disable-pip-version-check install \
            --requirement "$requirements" </dev/null >&2; then
        not_checked "its tools could not be installed"
    fi
    cp "$requirements" "$folder/requirements.txt"
fi

export PYTHONDONTWRITEBYTECODE=1
"$folder/bin/python" "$here/check.py"
"$folder/bin/python" "$here/self_test.py"
