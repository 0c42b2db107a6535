"""Manifests and settings, as the checks look at them."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ("dev", "production")

# Where a deployment's settings are described, every one of them.
DEFAULTS = ROOT / "crates/bootstrap/src/defaults.toml"

DURATION = re.compile(r"(\d+)(ms|s|m|h)")
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def settings():
    """Every variable that is a setting → its default."""
    document = tomllib.loads(DEFAULTS.read_text())
    known = {}
    for key, value in document.items():
        if isinstance(value, dict):
            for name, default in value.items():
                known[f"FLASHSALE__{key}__{name}".upper()] = default
        else:
            known[f"FLASHSALE__{key}".upper()] = value
    return known


def is_secret(variable):
    """Whether a setting's value must not stand in a manifest."""
    return variable in {
        "FLASHSALE__REDIS__URL",
        "FLASHSALE__DATABASE__URL",
        "FLASHSALE__AUTH__JWT_SECRET",
        "FLASHSALE__PAYMENT__WEBHOOK_SECRET",
        "FLASHSALE__WEBHOOKS__SECRET",
    }


def setting_problems(variable, value, known):
    """What is wrong with one variable of a program's environment."""
    if not variable.startswith("FLASHSALE_"):
        return
    base = variable.removesuffix("__FILE")
    if variable == "FLASHSALE_CONFIG":
        return
    if base not in known:
        yield f"{variable} is no setting"
    elif is_secret(base) and base == variable:
        yield f"{variable} is a secret, and has to come by {variable}__FILE"
    elif not is_secret(base) and base != variable:
        yield f"{base} is no secret, and is set as it is"
    elif not isinstance(value, str):
        yield f"{variable} is {value!r}, and no text"


def seconds(text):
    """A duration such as `1m 30s`."""
    parts = DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        raise ValueError(f"{text!r} is no duration")
    return sum(int(number) * SECONDS[unit] for number, unit in parts)


def image_problems(image):
    """What is wrong with an image's name: it has to be the same one tomorrow."""
    name, _, tag = image.rpartition("/")[2].partition(":")
    if "@sha256:" in image:
        return
    if not name or not tag:
        yield f"image {image} has no tag"
    elif tag == "latest":
        yield f"image {image} is another one tomorrow"


def load(path):
    """The documents of a YAML file."""
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document is not None]


def named(document):
    """Kind and name, as a message says it."""
    return f"{document['kind']} {document['metadata']['name']}"


def of_kind(documents, *kinds):
    """Those of these kinds."""
    return [document for document in documents if document["kind"] in kinds]


def pod_spec(document):
    """The pods that a workload makes: their labels and their spec."""
    template = document["spec"]["template"]
    return template["metadata"].get("labels", {}), template["spec"]


def workloads(documents):
    """Everything that makes pods."""
    return of_kind(documents, "Deployment", "StatefulSet", "DaemonSet", "Job")


def containers(spec):
    """Every container of a pod."""
    return spec.get("initContainers", []) + spec["containers"]


def selects(selector, labels):
    """Whether a label selector takes what has these labels."""
    exact = selector.get("matchLabels", {})
    if any(labels.get(key) != value for key, value in exact.items()):
        return False
    for expression in selector.get("matchExpressions", []):
        if expression["operator"] != "In" or labels.get(expression["key"]) not in expression["values"]:
            return False
    return True
