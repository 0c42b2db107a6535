"""Checks everything under deploy/: one line for each check that passed, each problem as it is found.

Run by run.sh, which has the tools. Exit status 0 when there is no problem, else 1.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import compose
import image
import manifests
import monitoring
import policies
import proxy
import schemas
from manifests import ROOT


class Checks:
    """Counts what went wrong."""

    def __init__(self):
        self.failed = 0

    def say(self, what, problems):
        """One check: what it is of, and the problems that it found."""
        found = list(problems)
        for problem in found:
            print(f"deploy: {what}: {problem}", file=sys.stderr)
        self.failed += len(found)
        if not found:
            print(f"deploy: {what}: ok")

    def run(self, what, *command):
        """One check by a tool, which is silent when all is well."""
        self.say(what, tool_problems(command))


def tool_problems(command):
    """What a tool complains of."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        yield (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"


def of_prometheus(checks, promtool, folder):
    checks.run("alerts.yaml: promtool check rules", promtool, "check", "rules", monitoring.ALERTS)
    checks.run("tests.yaml: promtool test rules", promtool, "test", "rules", monitoring.TESTS)
    panels = folder / "dashboard-rules.yaml"
    panels.write_text(monitoring.as_rules(json.loads(monitoring.DASHBOARD.read_text(encoding="utf-8"))))
    checks.run("dashboard.json: promtool check rules", promtool, "check", "rules", panels)
    scrape = ROOT / "deploy/compose/prometheus.yaml"
    checks.run("prometheus.yaml: promtool check config", promtool, "check", "config", "--syntax-only", scrape)


def of_cluster(checks, tools, folder):
    for overlay in manifests.OVERLAYS:
        path = ROOT / "deploy/k8s/overlays" / overlay
        rendered = folder / f"{overlay}.yaml"
        done = subprocess.run([tools / "kubectl", "kustomize", path], capture_output=True, text=True)
        rendered.write_text(done.stdout)
        checks.say(f"{overlay}: kubectl kustomize", [done.stderr] if done.returncode != 0 else [])
        if done.returncode != 0:
            continue
        documents = manifests.load(rendered)
        versions = " and ".join(schemas.VERSIONS)
        checks.say(f"{overlay}: {len(documents)} objects, strictly as of Kubernetes {versions}", schemas.problems(documents))
        found = [problem for policy in policies.POLICIES for problem in policy(documents)]
        checks.say(f"{overlay}: {len(policies.POLICIES)} policies", found)


def of_proxy(checks, tools, folder):
    checks.say("nginx: policies", proxy.problems(proxy.texts()))
    main = proxy.copy(folder)
    checks.run("nginx: gixy", tools / "gixy", main)
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if nginx:
        once = ("-g", f"pid {folder}/nginx.pid;")
        checks.run("nginx: nginx -t", nginx, "-t", "-q", "-e", "stderr", "-c", main, *once)
    else:
        print("lint: the proxy's configuration was NOT tested by nginx: it is not installed", file=sys.stderr)


def main():
    tools = Path(sys.executable).parent
    checks = Checks()
    dockerfile = image.FILE.read_text(encoding="utf-8")
    checks.run("Dockerfile: hadolint", tools / "hadolint", image.FILE)
    checks.say("Dockerfile: policies", image.problems(dockerfile))
    checks.say("Dockerfile: what the build reads is in its context", image.context_problems())
    checks.say("Dockerfile: the skeleton is a workspace", image.skeleton_problems())
    checks.run("yamllint", tools / "yamllint", "--config-file", ROOT / "deploy/checks/yamllint.yaml", ROOT / "deploy")
    schema = ("--builtin-schema", "vendor.compose-spec")
    checks.run("compose.yaml: the compose specification", tools / "check-jsonschema", *schema, compose.FILE)
    checks.say("compose.yaml: policies", compose.problems(manifests.load(compose.FILE)[0]))
    with tempfile.TemporaryDirectory() as name:
        of_proxy(checks, tools, Path(name))
        of_cluster(checks, tools, Path(name))
        checks.say("alerts and dashboard: metrics, runbooks, tests", monitoring.problems())
        promtool = shutil.which("promtool")
        if promtool:
            of_prometheus(checks, promtool, Path(name))
        else:
            print("lint: alert rules and dashboard were NOT checked by promtool: it is not installed", file=sys.stderr)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
