#!/usr/bin/env bash
# Rolls an overlay out: what has to be there first, then the migration, then everything.
#
#   roll-out.sh OVERLAY     a folder of overlays/, such as production; kubectl's present context
#
# Exit status: 0 everything is ready, else that of the step that failed. It can be run again.
set -euo pipefail

if (($# != 1)); then
    echo "usage: roll-out.sh OVERLAY (dev, production, …)" >&2
    exit 2
fi
overlay=$(dirname "${BASH_SOURCE[0]}")/overlays/$1
namespace=$(sed -n 's/^namespace: *//p' "$overlay/kustomization.yaml")

# A Job cannot be changed, and the new version's has another image.
kubectl delete job flashsale-migrate --namespace "$namespace" --ignore-not-found
kubectl apply --kustomize "$overlay" --selector rollout-phase=prepare
if ! kubectl wait job/flashsale-migrate --namespace "$namespace" --for condition=complete --timeout 600s; then
    echo "roll-out: the migration did not end; nothing was rolled out" >&2
    kubectl logs job/flashsale-migrate --namespace "$namespace" --tail 50 >&2 || true
    exit 1
fi
kubectl apply --kustomize "$overlay"
for deployment in flashsale-worker flashsale-gateway; do
    kubectl rollout status "deployment/$deployment" --namespace "$namespace" --timeout 600s
done
