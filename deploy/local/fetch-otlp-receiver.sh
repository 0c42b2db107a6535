#!/usr/bin/env bash
# Fetches a receiver of traces (Rotel, an OpenTelemetry collector that no one here wrote) for the
# end-to-end tests and prints the path of its program. It starts nothing.
#
#   fetch-otlp-receiver.sh FOLDER     FOLDER keeps it; what is there already is not fetched again
#
# Debian has no collector; the Python package `rotel` carries this one, for x86-64 and glibc 2.34 or newer.
# Exit status: 0 it is there, 2 wrong usage, 3 it cannot be had.
set -euo pipefail

version=0.0.1a15
sha256=2f4117e58410c933e0dc042a268ef738dab2e3a5d63b5831209acdac2a6ddcb7

if (($# != 1)); then
    echo "usage: fetch-otlp-receiver.sh FOLDER" >&2
    exit 2
fi
if [[ -n ${OTLP_RECEIVER_BIN:-} ]]; then
    echo "$OTLP_RECEIVER_BIN"
    exit 0
fi
folder=$1/rotel-$version
program=$folder/rotel/rotel-agent

if [[ -x $program ]]; then
    realpath "$program"
    exit 0
fi
echo "fetch-otlp-receiver: fetching rotel $version" >&2
mkdir -p "$1"
# A folder of this process's own, which takes its place when it is complete: several may fetch at once.
work=$(mktemp -d "$1/fetching.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "rotel==$version --hash=sha256:$sha256" >"$work/requirements.txt"
# Of whatever version Python itself is: only the program is wanted, and it needs none.
if ! python3 -m venv "$work/venv" >&2 ||
    ! "$work/venv/bin/pip" --quiet --disable-pip-version-check install --no-deps --only-binary :all: \
        --platform manylinux_2_34_x86_64 --implementation cp --python-version 3.11 --abi cp311 \
        --target "$work/rotel" --requirement "$work/requirements.txt" </dev/null >&2; then
    echo "fetch-otlp-receiver: no receiver: it takes python3 with venv, a package index and x86-64, or" \
        "name a rotel program in OTLP_RECEIVER_BIN" >&2
    exit 3
fi
chmod 755 "$work/rotel/rotel/rotel-agent"
mv -T "$work/rotel" "$folder" 2>/dev/null || [[ -x $program ]]
realpath "$program"
