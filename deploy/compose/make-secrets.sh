#!/usr/bin/env bash
# Writes random secrets for compose.yaml into the folder `secrets` beside it, which git ignores. What is
# there already stays: a database keeps the password that it was made with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Nobody else may look into the folder. The files themselves are readable, because compose mounts each
# as it is, for a program that is neither root nor the owner.
umask 022
mkdir -p secrets
chmod 700 secrets

# 32 random bytes, in letters that a URL takes.
random() {
    head -c 32 /dev/urandom | base64 | tr -d '=\n' | tr '+/' '-_'
}

write() {
    local name=$1 value=$2
    if [[ ! -s secrets/$name ]]; then
        printf '%s\n' "$value" >"secrets/$name"
        echo "make-secrets: wrote secrets/$name"
    fi
}

write redis-password "$(random)"
write redis-requirepass "requirepass $(<secrets/redis-password)"
write redis-url "redis://:$(<secrets/redis-password)@redis:6379"
write postgres-password "$(random)"
write database-url "postgres://flashsale:$(<secrets/postgres-password)@postgres:5432/flashsale"
write jwt-secret "$(random)"
write payment-webhook-secret "whsec_$(head -c 32 /dev/urandom | base64 | tr -d '\n')"
write grafana-password "$(random)"
