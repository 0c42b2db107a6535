#!/usr/bin/env bash
# Writes a workspace that has this one's dependencies and no code: every manifest, the lock file, and
# an empty source for each target that Cargo looks for.
#
#   skeleton.sh FOLDER     FOLDER must not exist
#
# For the image's dependency layer (see the Dockerfile beside it): its content changes only when a
# manifest or the lock file does, or a crate begins or ceases to have a library or a program.
set -euo pipefail

if (($# != 1)) || [[ -e $1 ]]; then
    echo "usage: skeleton.sh FOLDER (which must not exist)" >&2
    exit 2
fi
target=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

mkdir -p "$target"
cp Cargo.toml Cargo.lock "$target"
for manifest in crates/*/Cargo.toml migrations/Cargo.toml; do
    crate=$(dirname "$manifest")
    mkdir -p "$target/$crate/src"
    cp "$manifest" "$target/$crate"
    # An empty library is one; an empty program has to have a main. Only what is not there before is
    # made up, so that a library without a program does not get one.
    if [[ -f $crate/src/lib.rs ]]; then : >"$target/$crate/src/lib.rs"; fi
    if [[ -f $crate/src/main.rs ]]; then echo 'fn main() {}' >"$target/$crate/src/main.rs"; fi
done
