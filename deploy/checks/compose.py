"""What the compose file has to be, beyond being valid."""

import manifests
from manifests import ROOT

FILE = ROOT / "deploy/compose/compose.yaml"
# How long a program may drain, and so has to be left to itself.
DRAIN_OF = {"gateway": "FLASHSALE__HTTP__DRAIN_DEADLINE", "worker": "FLASHSALE__WORKER__DRAIN_DEADLINE"}
# Ends by itself, so nobody has to ask whether it is well.
ONE_OFF = {"migrate", "salectl"}
# Who may be reached from other machines.
PUBLIC = {"nginx"}


def is_ours(service):
    return service["image"].startswith("flashsale:")


def problems(document):
    """What is wrong with the whole."""
    known = manifests.settings()
    services = document["services"]
    for name in ("redis", "postgres", "migrate", "gateway", "worker", "nginx", "prometheus", "grafana"):
        if name not in services:
            yield f"there is no {name}"
    for name, service in services.items():
        for problem in service_problems(name, service, known):
            yield f"{name}: {problem}"
    for name, secret in document["secrets"].items():
        if not secret.get("file", "").startswith("./secrets/"):
            yield f"secret {name} does not come from the folder that git ignores"


def service_problems(name, service, known):
    if not is_ours(service):
        yield from manifests.image_problems(service["image"])
    if not service.get("deploy", {}).get("resources", {}).get("limits", {}).get("memory"):
        yield "may take all memory"
    if service.get("read_only") is not True:
        yield "can write to its image"
    if service.get("privileged") or "/var/run/docker.sock" in str(service.get("volumes")):
        yield "is as mighty as its host"
    health = service.get("healthcheck", {})
    if name in ONE_OFF:
        if not health.get("disable"):
            yield "ends by itself, and is asked whether it is well"
    elif not is_ours(service) and "test" not in health:
        yield "nobody asks whether it is well"
    for port in service.get("ports", []):
        if name not in PUBLIC and not port.startswith("127.0.0.1:"):
            yield f"port {port} is open to other machines"
    for mount in service.get("volumes", []):
        source = mount.split(":")[0]
        if source.startswith(".") and not (FILE.parent / source).exists():
            yield f"mounts {source}, which is not there"
    if is_ours(service):
        yield from program_problems(name, service, known)


def program_problems(name, service, known):
    if service.get("cap_drop") != ["ALL"]:
        yield "has capabilities"
    files = {f"/run/secrets/{secret}" for secret in service["secrets"]}
    for variable, value in service["environment"].items():
        yield from manifests.setting_problems(variable, value, known)
        if variable.endswith("__FILE") and value not in files:
            yield f"{variable} names a file that is no secret of it"
    for other in service.get("depends_on", {}).values():
        if other["condition"] == "service_started":
            yield "does not wait until what it needs is well"
    if name in DRAIN_OF:
        drain = manifests.seconds(service["environment"].get(DRAIN_OF[name], known[DRAIN_OF[name]]))
        if manifests.seconds(service.get("stop_grace_period", "10s")) <= drain:
            yield "is killed before its drain is over"
        if service["deploy"].get("replicas", 1) < 2:
            yield "is there only once"
