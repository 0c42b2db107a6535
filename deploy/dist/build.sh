#!/usr/bin/env bash
# Builds what ships: stripped programs, their settings, salectl's completions, an archive, checksums.
#
#   build.sh     into $CARGO_TARGET_DIR/dist (target/dist): flashsale-<version>-<target triple>/, the
#                .tar.gz of it, and SHA256SUMS
#
# Environment:
#   DIST_PROFILE       a profile of Cargo, `dist` when not set; `release` is quicker and larger
#   FLASHSALE_COMMIT   the commit that the programs name, when git cannot be asked: a source archive has none
#   SOURCE_DATE_EPOCH  the time of every file in the archive, when it is not to be the commit's
#
# The same commit, toolchain and machine give the same archive, byte for byte.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

profile=${DIST_PROFILE:-dist}
target_dir=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
programs=(gateway order-worker salectl rush)
# Where Cargo puts what a profile builds: by its name, but for its own oldest.
built=$target_dir/${profile/#dev/debug}

# Without it, git would go up to whatever repository lies around an unpacked source archive.
if [[ -e .git ]] && commit=$(git rev-parse HEAD 2>/dev/null); then
    : "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
    if [[ -n $(git status --porcelain) ]]; then
        commit+=-dirty
        echo 'dist: the tree has changes that are in no commit: the programs call it -dirty' >&2
    fi
    export FLASHSALE_COMMIT=${FLASHSALE_COMMIT:-$commit}
fi
# Not the clock: what has no date is as old as the oldest archive that every tool reads.
: "${SOURCE_DATE_EPOCH:=315532800}"
: "${FLASHSALE_COMMIT:=unknown}"
export FLASHSALE_COMMIT SOURCE_DATE_EPOCH

triple=$(rustc -vV | sed -n 's/^host: //p')
package=$(cargo pkgid --package flashsale-gateway)
version=${package##*[@#]}
name=flashsale-$version-$triple

# Paths of this machine are in no program: they tell who built it, and change it from machine to machine.
flags=("--remap-path-prefix=$PWD=/flashsale" "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    "--remap-path-prefix=$target_dir=/flashsale/target")
RUSTFLAGS="${RUSTFLAGS:-} ${flags[*]}" CARGO_INCREMENTAL=0 \
    cargo build --locked --profile "$profile" "${programs[@]/#/--bin=}"

out=$target_dir/dist
folder=$out/$name
rm -rf "$folder" "$folder.tar.gz" "$out/SHA256SUMS"
mkdir -p "$folder/completions"
for program in "${programs[@]}"; do
    # -s: for the sake of profiles that keep symbols.
    install -s -m 755 "$built/$program" "$folder"
done
install -m 644 LICENSE README.md CHANGELOG.md docs/configuration.md "$folder"
# The scripts of Redis and the migrations are in the programs. The settings are too; this is to start from.
"$folder/gateway" --print-defaults >"$folder/flashsale.toml"
"$folder/salectl" completions bash >"$folder/completions/salectl.bash"
"$folder/salectl" completions zsh >"$folder/completions/_salectl"
"$folder/salectl" completions fish >"$folder/completions/salectl.fish"

for program in "${programs[@]}"; do
    said=$("$folder/$program" --version)
    [[ $said == "$program $version (commit $FLASHSALE_COMMIT)" ]] ||
        { echo "dist: $program --version says: $said" >&2; exit 1; }
done

chmod -R u=rwX,go=rX "$folder"
tar --directory "$out" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --format=ustar --create "$name" | gzip --no-name --best >"$folder.tar.gz"
cd "$out"
find "$name" "$name.tar.gz" -type f -print0 | sort -z | xargs -0 sha256sum >SHA256SUMS
echo "$folder.tar.gz"
