"""Whether the rendered manifests are valid: strictly, by the schemas of two versions of Kubernetes, and
the kinds of operators by custom-resources.yaml. A kind that neither knows is a problem."""

import jsonschema
import kubernetes_validate
import yaml

import manifests
from manifests import named

# The oldest that the manifests are for (preStop's sleep is on by default since 1.30), and the newest that
# the validator has.
VERSIONS = ("1.31", "1.37")


def custom_schemas():
    definitions = yaml.safe_load((manifests.ROOT / "deploy/checks/custom-resources.yaml").read_text())["definitions"]
    return {
        kind: {"$ref": f"#/definitions/{kind}", "definitions": definitions}
        for kind in ("ScaledObject", "ServiceMonitor", "PrometheusRule")
    }


def by_kubernetes(document):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{named(document)}: Kubernetes {version} has no {document['apiVersion']} {document['kind']}"
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            yield f"{named(document)}: Kubernetes {version}: {path}: {error.message}"


def as_autoscaler(scaled):
    """What KEDA makes of the behaviour that a ScaledObject wishes for."""
    config = scaled["spec"].get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "any"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": scaled["metadata"]["name"] + " (its behavior)"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 1, "behavior": config.get("behavior", {})},
    }


def problems(documents):
    """What is invalid."""
    custom = custom_schemas()
    for document in documents:
        schema = custom.get(document["kind"])
        if schema is None:
            yield from by_kubernetes(document)
            continue
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
            yield f"{named(document)}: {error.json_path}: {error.message}"
        if document["kind"] == "ScaledObject":
            yield from by_kubernetes(as_autoscaler(document))
