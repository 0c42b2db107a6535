#!/usr/bin/env bash
# Makes sure that what the demo, the tests and the checks start is installed. It starts nothing.
#
#   ensure-services.sh               Redis
#   ensure-services.sh --postgres    Redis and PostgreSQL
#   ensure-services.sh --nginx       Redis and nginx
#   ensure-services.sh --faketime    Redis and libfaketime, which sets the clocks of single programs
#   ensure-services.sh --prometheus  Redis and Prometheus with promtool
#   ensure-services.sh --valgrind    Redis and valgrind, which counts instructions
#   ensure-services.sh --venv        Redis and Python with venv, by which fetch-otlp-receiver.sh fetches
#                                    (these six options can be combined)
#   ensure-services.sh --lint        only what `make lint` needs: shellcheck
#   ensure-services.sh --deploy      only what `make check-deploy` needs: promtool, nginx, and Python with
#                                    venv
#
# As root with apt-get it installs what is missing; otherwise it says in one line what to install.
# Exit status: 0 all is there, 2 wrong usage, 3 something is missing, else apt-get's own.
set -euo pipefail

want_redis=yes want_postgres=no want_nginx=no want_faketime=no want_shellcheck=no want_prometheus=no want_venv=no want_valgrind=no
for option in "$@"; do
    case $option in
        --postgres) want_postgres=yes ;;
        --nginx) want_nginx=yes ;;
        --faketime) want_faketime=yes ;;
        --lint) want_redis=no want_shellcheck=yes ;;
        --prometheus) want_prometheus=yes ;;
        --valgrind) want_valgrind=yes ;;
        --venv) want_venv=yes ;;
        --deploy) want_redis=no want_prometheus=yes want_nginx=yes want_venv=yes ;;
        *)
            echo "ensure-services: unknown option $option (known: --postgres --nginx --faketime --prometheus --valgrind --venv --lint --deploy)" >&2
            exit 2
            ;;
    esac
done

has_command() {
    # Debian keeps daemons in sbin, which is not on every user's PATH.
    command -v "$1" >/dev/null || [[ -x /usr/sbin/$1 ]]
}

has_redis() {
    if [[ -n ${REDIS_SERVER_BIN:-} ]]; then [[ -x $REDIS_SERVER_BIN ]]; else has_command redis-server; fi
}

# Debian does not put initdb on the PATH.
has_postgres() {
    local initdb
    if [[ -n ${PG_BIN_DIR:-} ]]; then
        [[ -x $PG_BIN_DIR/initdb ]]
        return
    fi
    for initdb in /usr/lib/postgresql/*/bin/initdb; do
        if [[ -x $initdb ]]; then return 0; fi
    done
    command -v initdb >/dev/null
}

has_faketime() {
    local library
    for library in /usr/lib/*/faketime/libfaketimeMT.so.1; do
        if [[ -e $library ]]; then return 0; fi
    done
    return 1
}

# Debian's python3 has neither pip nor venv.
has_python_venv() {
    python3 -c 'import ensurepip, venv' 2>/dev/null
}

missing=()
find_missing() {
    missing=()
    if [[ $want_redis == yes ]] && ! has_redis; then missing+=(redis-server); fi
    if [[ $want_postgres == yes ]] && ! has_postgres; then missing+=(postgresql); fi
    if [[ $want_nginx == yes ]] && ! has_command nginx; then missing+=(nginx); fi
    if [[ $want_faketime == yes ]] && ! has_faketime; then missing+=(faketime); fi
    if [[ $want_shellcheck == yes ]] && ! has_command shellcheck; then missing+=(shellcheck); fi
    if [[ $want_prometheus == yes ]] && ! has_command promtool; then missing+=(prometheus); fi
    if [[ $want_valgrind == yes ]] && ! has_command valgrind; then missing+=(valgrind); fi
    if [[ $want_venv == yes ]] && ! has_python_venv; then missing+=(python3-venv); fi
}

say_what_is_missing() {
    local how="install it with your package manager"
    if command -v apt-get >/dev/null; then
        how="run as root: apt-get install -y --no-install-recommends ${missing[*]}"
    fi
    echo "ensure-services: missing: ${missing[*]} ($how)" >&2
    exit 3
}

find_missing
if ((${#missing[@]} == 0)); then
    exit 0
fi
if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    say_what_is_missing
fi

# Debian's packages start their service at once, on the port that a private one of somebody else may
# want. policy-rc.d is Debian's way to forbid that; one that is already there is left alone.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy && ! -L $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

# RUNLEVEL=1 says the same to invoke-rc.d of systems that ignore the policy.
install_missing() {
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -q -o DPkg::Lock::Timeout=300 \
        install -y --no-install-recommends "${missing[@]}" </dev/null >&2
}

echo "ensure-services: installing ${missing[*]}" >&2
# A package list that is empty or out of date shows up as a failed installation.
if ! install_missing; then
    apt-get -q -o DPkg::Lock::Timeout=300 update </dev/null >&2
    install_missing
fi

find_missing
if ((${#missing[@]} > 0)); then
    say_what_is_missing
fi
