#!/usr/bin/env bash
# Installs the peers of the bench into a folder: their pinned packages, from the registries that npm and
# pip are set up for.
#
#   crates/bench/peers/install.sh target/bench/peers
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
to=${1:?the folder to install into}

for program in node npm python3; do
	command -v "$program" >/dev/null || { echo "bench-peers: $program is not installed" >&2; exit 2; }
done

mkdir -p "$to/bullmq" "$to/python"
cp "$here"/bullmq/{package.json,package-lock.json,peer.mjs} "$to/bullmq/"
(cd "$to/bullmq" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)

cp "$here/faststream/peer.py" "$to/python/"
[[ -x $to/python/bin/python ]] || python3 -m venv "$to/python"
"$to/python/bin/python" -m pip install --quiet --disable-pip-version-check \
	--requirement "$here/faststream/requirements.txt"
