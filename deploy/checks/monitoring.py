"""Alert rules and dashboard: every metric in them is one that the programs export, every alert has a test
and a runbook, and the PrometheusRule of the cluster says what the rule file says."""

import json
import re

import yaml

import manifests
from manifests import ROOT

ALERTS = ROOT / "deploy/monitoring/alerts.yaml"
TESTS = ROOT / "deploy/monitoring/tests.yaml"
DASHBOARD = ROOT / "deploy/monitoring/dashboard.json"
RULE = ROOT / "deploy/k8s/base/prometheus-rule.yaml"

METRIC = re.compile(r"\bflashsale_[a-z0-9_]+")
RECORDED = re.compile(r"\bflashsale:[a-z0-9_:]+")
# What a histogram is exported as.
PARTS = re.compile(r"_(bucket|sum|count)$")
# Grafana's, which promtool does not know.
VARIABLES = {"$__rate_interval": "1m", "$__range": "15m", "$__interval": "15s"}
# What an operator sees first must not be gone from the dashboard.
SHOWN = {
    "flashsale_admissions_total",
    "flashsale_stock_left",
    "flashsale_stream_backlog",
    "flashsale_oldest_unapplied_seconds",
    "flashsale_commit_lag_seconds",
    "flashsale_dead_letters",
    "flashsale_ledger_imbalance",
    "flashsale_entries_lost_total",
    "flashsale_admission_seconds",
    "flashsale_admission_queue_depth",
    "flashsale_redis_pool_connections",
    "flashsale_database_pool_connections",
}


def exported():
    """Every metric of docs/operations.md; a test of the workspace keeps that list true to the code."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    return {name for span in re.findall(r"`([^`\n]+)`", text) for name in METRIC.findall(span)}


def rules(document):
    return [rule for group in document["groups"] for rule in group["rules"]]


def unknown_metrics(expression, known, recorded):
    for name in METRIC.findall(expression):
        if name not in known and PARTS.sub("", name) not in known:
            yield f"nobody exports {name}"
    for name in RECORDED.findall(expression):
        if name not in recorded:
            yield f"no rule records {name}"


def alert_problems(document, tests):
    """What is wrong with the rules, and with what tests them."""
    known = exported()
    recorded = {rule["record"] for rule in rules(document) if "record" in rule}
    fired, quiet = set(), set()
    for test in tests["tests"]:
        for case in test.get("alert_rule_test", []):
            (fired if case["exp_alerts"] else quiet).add(case["alertname"])
    for rule in rules(document):
        name = rule.get("alert", rule.get("record"))
        for problem in unknown_metrics(rule["expr"], known, recorded):
            yield f"{name}: {problem}"
        if "alert" not in rule:
            continue
        if rule.get("labels", {}).get("severity") not in ("page", "ticket"):
            yield f"{name}: is neither page nor ticket"
        runbook = rule.get("annotations", {}).get("runbook_url", "")
        if not runbook.startswith("docs/runbooks/") or not (ROOT / runbook).is_file():
            yield f"{name}: there is no runbook {runbook!r}"
        elif f"`{name}`" not in (ROOT / runbook).read_text(encoding="utf-8"):
            yield f"{name}: {runbook} does not name it"
        if "summary" not in rule.get("annotations", {}):
            yield f"{name}: has no summary"
        if name not in fired:
            yield f"{name}: no test makes it fire"
        if name not in quiet:
            yield f"{name}: no test shows that it can be quiet"
    runbooks = {rule["annotations"].get("runbook_url") for rule in rules(document) if "alert" in rule}
    for file in sorted((ROOT / "docs/runbooks").glob("*.md")):
        path = str(file.relative_to(ROOT))
        if path not in runbooks and file.name not in ("README.md", "before-a-sale.md"):
            yield f"{path} belongs to no alert"


def expressions(dashboard):
    """Panel → PromQL."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def dashboard_problems(dashboard, document):
    known = exported()
    recorded = {rule["record"] for rule in rules(document) if "record" in rule}
    used = set()
    for title, expression in expressions(dashboard):
        used |= {PARTS.sub("", name) for name in METRIC.findall(expression)}
        for problem in unknown_metrics(expression, known, recorded):
            yield f"panel {title}: {problem}"
    for name in sorted(SHOWN - used):
        yield f"no panel shows {name}"
    numbers = [panel["id"] for panel in dashboard["panels"]]
    if len(set(numbers)) != len(numbers):
        yield "two panels have one number"


def as_rules(dashboard):
    """The dashboard's expressions as a rule file, so that promtool reads them."""
    listed = []
    for number, (_, expression) in enumerate(expressions(dashboard)):
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        listed.append({"record": f"panel:{number}", "expr": expression})
    return yaml.safe_dump({"groups": [{"name": "dashboard", "rules": listed}]})


def as_prometheus_rule(text):
    """The custom resource of a rule file's text."""
    groups = text[text.index("groups:\n"):]
    spec = "".join(f"  {line}\n" if line else "\n" for line in groups.splitlines())
    return (
        "# Made of deploy/monitoring/alerts.yaml by `make rules`: change that one.\n"
        "apiVersion: monitoring.coreos.com/v1\n"
        "kind: PrometheusRule\n"
        "metadata:\n"
        "  name: flashsale\n"
        "  labels:\n"
        "    app.kubernetes.io/name: flashsale\n"
        "spec:\n" + spec
    )


def problems():
    """What is wrong with the files as they are."""
    document = manifests.load(ALERTS)[0]
    yield from alert_problems(document, manifests.load(TESTS)[0])
    yield from dashboard_problems(json.loads(DASHBOARD.read_text(encoding="utf-8")), document)
    if RULE.read_text(encoding="utf-8") != as_prometheus_rule(ALERTS.read_text(encoding="utf-8")):
        yield f"{RULE.relative_to(ROOT)} is not what alerts.yaml says: run `make rules`"


if __name__ == "__main__":
    RULE.write_text(as_prometheus_rule(ALERTS.read_text(encoding="utf-8")), encoding="utf-8")
