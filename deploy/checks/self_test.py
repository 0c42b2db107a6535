"""Shows for each check that it finds what it is for: a file that is right is spoilt in one place, and the
check has to name it."""

import copy
import json
import subprocess
import sys
import unittest
from pathlib import Path

import compose
import image
import manifests
import monitoring
import policies
import proxy
import schemas
from manifests import ROOT, of_kind, pod_spec


def render(overlay):
    path = ROOT / "deploy/k8s/overlays" / overlay
    done = subprocess.run([Path(sys.executable).parent / "kubectl", "kustomize", path], capture_output=True, check=True)
    return [document for document in manifests.yaml.safe_load_all(done.stdout)]


PRODUCTION = render("production")
DEV = render("dev")


def find(documents, kind, name):
    return next(d for d in of_kind(documents, kind) if d["metadata"]["name"].startswith(name))


def spec(documents, kind="Deployment", name="flashsale-gateway"):
    return pod_spec(find(documents, kind, name))[1]


def container(documents, kind="Deployment", name="flashsale-gateway"):
    return spec(documents, kind, name)["containers"][0]


def settings(documents):
    return find(documents, "ConfigMap", "flashsale-settings")["data"]


def variable(documents, name):
    return next(v for v in container(documents)["env"] if v["name"] == name)


def policy(documents, name):
    return find(documents, "NetworkPolicy", name)["spec"]


def remove(documents, kind, name):
    documents.remove(find(documents, kind, name))


def scaled(documents):
    return find(documents, "ScaledObject", "flashsale-worker")["spec"]


# Policy → what spoils a manifest, and a part of what is then said.
SPOILT = {
    policies.images_are_pinned: [
        (lambda d: container(d).update(image="flashsale:latest"), "another one tomorrow"),
        (lambda d: container(d).update(image="registry:5000/flashsale"), "no tag"),
        (lambda d: container(d, "Job", "flashsale-migrate").update(image="flashsale"), "Job flashsale-migrate"),
    ],
    policies.resources_are_set: [
        (lambda d: container(d)["resources"].pop("limits"), "limits.memory"),
        (lambda d: container(d, name="flashsale-worker")["resources"]["requests"].pop("cpu"), "requests.cpu"),
    ],
    policies.probes_fit_the_programs: [
        (lambda d: container(d)["readinessProbe"]["httpGet"].update(port="metrics"), "asks port metrics"),
        (lambda d: container(d)["readinessProbe"]["httpGet"].update(path="/livez"), "does not ask /readyz"),
        (lambda d: container(d, name="flashsale-worker").pop("startupProbe"), "startupProbe does not ask"),
    ],
    policies.the_drain_fits_the_grace: [
        (lambda d: spec(d).update(terminationGracePeriodSeconds=25), "killed after 25 s, and may take 28"),
        (lambda d: settings(d).update(FLASHSALE__HTTP__DRAIN_DEADLINE="1m"), "may take 73"),
        (lambda d: spec(d, name="flashsale-worker").pop("terminationGracePeriodSeconds")
            and settings(d).update(FLASHSALE__WORKER__DRAIN_DEADLINE="30s"), "killed after 30 s"),
        (lambda d: container(d).pop("lifecycle"), "without a preStop"),
    ],
    policies.settings_are_settings: [
        (lambda d: settings(d).update(FLASHSALE__WORKER__BATSCH="500"), "BATSCH is no setting"),
        (lambda d: settings(d).update(LOG_LEVEL="debug"), "LOG_LEVEL is no setting"),
        (lambda d: settings(d).update(FLASHSALE__REDIS__URL="redis://:pw@x"), "is a secret"),
        (lambda d: container(d)["env"].append({"name": "FLASHSALE__AUTH__JWT_SECRET", "value": "x"}), "is a secret"),
    ],
    policies.secrets_are_mounted_files: [
        (lambda d: variable(d, "FLASHSALE__REDIS__URL__FILE").update(value="/run/redis-url"), "names a file"),
        (lambda d: spec(d)["volumes"][0]["secret"]["items"].pop(), "names a file"),
        (lambda d: container(d)["env"].append({"name": "X", "valueFrom": {"secretKeyRef": {}}}), "shows a secret"),
        (lambda d: container(d)["envFrom"].append({"secretRef": {"name": "x"}}), "becomes variables"),
    ],
    policies.the_network_is_closed: [
        (lambda d: remove(d, "NetworkPolicy", "deny-by-default"), "denies everything"),
        (lambda d: policy(d, "deny-by-default").update(policyTypes=["Ingress"]), "denies everything"),
        (lambda d: policy(d, "allow-monitoring")["ingress"][0].pop("from"), "lets everybody in"),
        (lambda d: policy(d, "allow-buyers")["ingress"][0]["from"].append({}), "is everybody"),
        (lambda d: policy(d, "allow-programs-to")["egress"][0]["to"][0]["ipBlock"].update(cidr="0.0.0.0/0"), "is everybody"),
    ],
    policies.pods_are_restricted: [
        (lambda d: spec(d)["securityContext"].pop("runAsNonRoot"), "may run as root"),
        (lambda d: spec(d)["securityContext"].update(runAsUser=0), "may run as root"),
        (lambda d: spec(d)["securityContext"].pop("seccompProfile"), "no seccomp"),
        (lambda d: spec(d).update(hostNetwork=True), "of its host"),
        (lambda d: spec(d)["volumes"].append({"name": "x", "hostPath": {"path": "/"}}), "of a kind"),
        (lambda d: container(d)["securityContext"].pop("allowPrivilegeEscalation"), "gain privileges"),
        (lambda d: container(d)["securityContext"].update(readOnlyRootFilesystem=False), "write to its image"),
        (lambda d: container(d)["securityContext"]["capabilities"].update(add=["NET_RAW"]), "has capabilities"),
    ],
    policies.nothing_is_handed_to_pods_unasked: [
        (lambda d: spec(d).pop("enableServiceLinks"), "enableServiceLinks"),
        (lambda d: spec(d, "Job", "flashsale-migrate").update(automountServiceAccountToken=True), "token of the cluster"),
    ],
    policies.targets_exist: [
        (lambda d: find(d, "Service", "flashsale-gateway")["spec"]["selector"].update(x="y"), "selects no pod"),
        (lambda d: find(d, "Service", "flashsale-worker")["spec"]["ports"][0].update(targetPort="metrics"), "no port metrics"),
        (lambda d: find(d, "PodDisruptionBudget", "flashsale-worker")["spec"]["selector"]["matchLabels"].update(x="y"), "selects no pod"),
        (lambda d: scaled(d)["scaleTargetRef"].update(name="worker"), "scales nothing"),
        (lambda d: find(d, "ServiceMonitor", "flashsale")["spec"]["endpoints"][0].update(port="http"), "no port http"),
        (lambda d: find(d, "Service", "flashsale-worker")["metadata"]["labels"].pop("flashsale-scrape"), "scrapes ['gateway']"),
    ],
    policies.only_buyers_are_routed: [
        (lambda d: find(d, "Ingress", "flashsale")["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
            .update(name="flashsale-gateway-admin"), "leads to flashsale-gateway-admin"),
        (lambda d: find(d, "Ingress", "flashsale")["metadata"]["annotations"].pop("nginx.ingress.kubernetes.io/limit-rps"), "limit-rps"),
        (lambda d: find(d, "Ingress", "flashsale")["metadata"]["annotations"].update(
            {"nginx.ingress.kubernetes.io/proxy-next-upstream": "error non_idempotent"}), "POST twice"),
        (lambda d: find(d, "Service", "flashsale-gateway-admin")["spec"].update(type="NodePort"), "from outside"),
    ],
    policies.each_program_survives_a_node: [
        (lambda d: remove(d, "PodDisruptionBudget", "flashsale-gateway"), "no PodDisruptionBudget"),
        (lambda d: spec(d)["topologySpreadConstraints"].pop(), "on one node"),
        (lambda d: find(d, "Deployment", "flashsale-worker")["spec"].update(replicas=2), "sets back"),
        (lambda d: find(d, "Deployment", "flashsale-worker")["spec"]["strategy"].clear(), "takes one away"),
    ],
    policies.workers_scale_on_what_they_ask_for: [
        (lambda d: scaled(d).update(minReplicaCount=0), "leave no worker"),
        (lambda d: scaled(d)["triggers"][0]["metadata"].update(query="sum(flashsale_stream_backlog)"), "and not max("),
        (lambda d: scaled(d)["triggers"][0].update(metricType="Value"), "number of pods"),
        (lambda d: scaled(d).pop("fallback"), "nobody knows"),
    ],
    policies.the_migration_runs_first: [
        (lambda d: remove(d, "Job", "flashsale-migrate"), "0 migration Jobs"),
        (lambda d: find(d, "Deployment", "flashsale-worker")["metadata"]["labels"].update({"rollout-phase": "prepare"}), "before the migration"),
        (lambda d: find(d, "ServiceAccount", "flashsale")["metadata"].pop("labels"), "ServiceAccount flashsale is not applied"),
        (lambda d: find(d, "NetworkPolicy", "allow-dns")["metadata"].pop("labels"), "allow-dns is not applied"),
    ],
    policies.everything_is_in_one_namespace: [
        (lambda d: find(d, "Service", "flashsale-gateway")["metadata"].update(namespace="default"), "the namespaces are"),
        (lambda d: find(d, "Namespace", "flashsale")["metadata"]["labels"].clear(), "restricted profile"),
    ],
}

# What no schema of ours or of Kubernetes takes.
INVALID = [
    (lambda d: find(d, "Deployment", "flashsale-gateway")["spec"].update(replicas="three"), "'three'"),
    (lambda d: container(d).update(livenesProbe={}), "livenesProbe"),
    (lambda d: find(d, "Ingress", "flashsale").update(kind="Ingres"), "has no networking.k8s.io/v1 Ingres"),
    (lambda d: find(d, "Ingress", "flashsale").update(apiVersion="extensions/v1beta1"), "has no extensions/v1beta1 Ingress"),
    (lambda d: scaled(d).update(minReplicas=2), "minReplicas"),
    (lambda d: scaled(d)["triggers"][0]["metadata"].update(threshold=1), "1 is not of type 'string'"),
    (lambda d: scaled(d)["advanced"]["horizontalPodAutoscalerConfig"]["behavior"].update(scaleup={}), "scaleup"),
    (lambda d: find(d, "ServiceMonitor", "flashsale")["spec"]["endpoints"][0].update(scrapeinterval="5s"), "scrapeinterval"),
    (lambda d: find(d, "PrometheusRule", "flashsale")["spec"]["groups"][0]["rules"][0].update(alert="X"), "valid under each"),
    (lambda d: find(d, "PrometheusRule", "flashsale")["spec"]["groups"][0]["rules"][0].update({"for": "soon"}), "'soon'"),
]

COMPOSE = [
    (lambda c: c["services"].pop("migrate"), "there is no migrate"),
    (lambda c: c["services"]["redis"].update(image="redis"), "no tag"),
    (lambda c: c["services"]["redis"].pop("deploy"), "all memory"),
    (lambda c: c["services"]["redis"].pop("healthcheck"), "nobody asks"),
    (lambda c: c["services"]["grafana"].update(ports=["3000:3000"]), "open to other machines"),
    (lambda c: c["services"]["redis"]["volumes"].append("./gone.conf:/x:ro"), "./gone.conf"),
    (lambda c: c["services"]["gateway"].update(cap_drop=[]), "capabilities"),
    (lambda c: c["services"]["gateway"].update(read_only=False), "write to its image"),
    (lambda c: c["services"]["nginx"].update(privileged=True), "as mighty as its host"),
    (lambda c: c["services"]["gateway"]["environment"].update(FLASHSALE__HTP__LISTEN="x"), "is no setting"),
    (lambda c: c["services"]["gateway"]["environment"].update(FLASHSALE__DATABASE__URL="postgres://u:p@h/d"), "is a secret"),
    (lambda c: c["services"]["gateway"]["secrets"].remove("jwt-secret"), "no secret of it"),
    (lambda c: c["services"]["gateway"]["depends_on"]["redis"].update(condition="service_started"), "does not wait"),
    (lambda c: c["services"]["worker"].update(stop_grace_period="10s"), "before its drain"),
    (lambda c: c["services"]["worker"]["deploy"].update(replicas=1), "only once"),
    (lambda c: c["services"]["migrate"].pop("healthcheck"), "ends by itself"),
    (lambda c: c["secrets"]["jwt-secret"].update(file="./jwt"), "git ignores"),
]

NGINX = [
    ("flashsale.conf", "rate=20r/s", "rate=200r/s", "requests a second is 200, and 20"),
    ("flashsale.conf", "burst=60", "burst=20", "the burst is 20, and 60"),
    ("flashsale.conf", "limit_conn connections 50;", "", "there is no limit_conn"),
    ("flashsale.conf", "connections 50", "connections 10", "is not told"),
    ("nginx.conf", "client_max_body_size 16k", "client_max_body_size 1m", "1048576, and 16384 in http.body_limit_bytes"),
    ("problems.conf", "16384 bytes", "16000 bytes", "is not told that a body"),
    ("nginx.conf", "buffers 2 8k", "buffers 4 8k", "http.head_limit_bytes"),
    ("flashsale.conf", "keepalive_timeout 60s", "keepalive_timeout 75s", "http.keep_alive"),
    ("flashsale.conf", "proxy_next_upstream error timeout;", "proxy_next_upstream error non_idempotent;", "sent twice"),
    ("flashsale.conf", "internal;", "", "anybody can ask"),
    ("flashsale.conf", "proxy_read_timeout 60s", "proxy_read_timeout 10s", "events$ is given up"),
    ("flashsale.conf", "proxy_read_timeout 40s", "proxy_read_timeout 30s", "orders(?: is given up"),
    ("flashsale.conf", "proxy_buffering off", "proxy_buffering on", "events are collected"),
    ("flashsale.conf", "proxy_read_timeout 40s;", "proxy_read_timeout 40s; proxy_cache sales;", "something else than sales"),
    ("flashsale.conf", "return 404;", "proxy_pass http://flashsale_gateway;", "what is not named"),
    ("flashsale.conf", "location = /docs {", "location /metrics {", "metrics is routed"),
    ("tls.conf", "TLSv1.2 TLSv1.3", "TLSv1.1 TLSv1.2", "TLS may be"),
    ("tls.conf", "ssl_early_data off", "ssl_early_data on", "early data"),
]

DOCKERFILE = [
    (":1.95.0-bookworm", ":latest", "another one tomorrow"),
    (":1.95.0-bookworm", ":1.80.0-bookworm", "older Rust"),
    ("debian:12.12-slim", "debian", "no tag"),
    ("USER 65532:65532", "USER root", "user"),
    ("HEALTHCHECK", "# health: ", "no HEALTHCHECK"),
    ("image.revision", "image.rev", "revision"),
    ("FLASHSALE__ADMIN__LISTEN", "FLASHSALE__ADMIN__LISTENS", "is no setting"),
]


class EachCheckFindsWhatItIsFor(unittest.TestCase):
    """And finds nothing where nothing is wrong, which check.py shows."""

    def finds(self, found, part):
        found = list(found)
        self.assertTrue(any(part in problem for problem in found), f"no {part!r} in {found}")

    def test_every_policy(self):
        self.assertEqual(set(SPOILT), set(policies.POLICIES), "a policy without a spoilt manifest")
        for check, cases in SPOILT.items():
            for spoil, part in cases:
                documents = copy.deepcopy(PRODUCTION)
                spoil(documents)
                with self.subTest(policy=check.__name__, part=part):
                    self.finds(check(documents), part)

    def test_a_secret_of_the_overlay_is_there_before_the_migration(self):
        documents = copy.deepcopy(DEV)
        find(documents, "Secret", "flashsale-secrets")["metadata"]["labels"].pop("rollout-phase")
        self.finds(policies.the_migration_runs_first(documents), "Secret flashsale-secrets")

    def test_every_schema(self):
        for spoil, part in INVALID:
            documents = copy.deepcopy(PRODUCTION)
            spoil(documents)
            with self.subTest(part=part):
                self.finds(schemas.problems(documents), part)

    def test_compose(self):
        for spoil, part in COMPOSE:
            document = copy.deepcopy(manifests.load(compose.FILE)[0])
            spoil(document)
            with self.subTest(part=part):
                self.finds(compose.problems(document), part)

    def test_the_image(self):
        text = image.FILE.read_text(encoding="utf-8")
        for old, new, part in DOCKERFILE:
            self.assertIn(old, text)
            with self.subTest(part=part):
                self.finds(image.problems(text.replace(old, new)), part)

        self.finds(image.context_problems("*\n!crates\n"), "reads from lua/")

    def test_the_proxy(self):
        for name, old, new, part in NGINX:
            files = proxy.texts()
            self.assertIn(old, files[name])
            files[name] = files[name].replace(old, new)
            with self.subTest(part=part):
                self.finds(proxy.problems(files), part)

    def test_alerts(self):
        document = manifests.load(monitoring.ALERTS)[0]
        tests = manifests.load(monitoring.TESTS)[0]
        cases = [
            (lambda r: r.update(expr="flashsale_admisions_total > 0"), "nobody exports flashsale_admisions_total"),
            (lambda r: r.update(expr="flashsale:gone:rate1m > 0"), "no rule records flashsale:gone:rate1m"),
            (lambda r: r["annotations"].update(runbook_url="docs/runbooks/gone.md"), "there is no runbook"),
            (lambda r: r["annotations"].update(runbook_url="docs/runbooks/dead-letters.md"), "does not name it"),
            (lambda r: r.update(alert="FlashsaleOther"), "no test makes it fire"),
            (lambda r: r["annotations"].pop("summary"), "no summary"),
            (lambda r: r.update(labels={}), "neither page nor ticket"),
        ]
        for spoil, part in cases:
            spoilt = copy.deepcopy(document)
            spoil(next(rule for rule in monitoring.rules(spoilt) if rule.get("alert") == "FlashsaleNoWorker"))
            with self.subTest(part=part):
                self.finds(monitoring.alert_problems(spoilt, tests), part)

    def test_the_dashboard(self):
        document = manifests.load(monitoring.ALERTS)[0]
        dashboard = json.loads(monitoring.DASHBOARD.read_text(encoding="utf-8"))
        text = json.dumps(dashboard)
        for old, new, part in [
            ("flashsale_followed_orders", "flashsale_followed_order", "nobody exports flashsale_followed_order"),
            ("flashsale_stock_left", "flashsale_followed_orders", "no panel shows flashsale_stock_left"),
            ("errors:ratio_rate1m", "errors:ratio_rate2m", "no rule records"),
        ]:
            with self.subTest(part=part):
                self.assertIn(old, text)
                self.finds(monitoring.dashboard_problems(json.loads(text.replace(old, new)), document), part)


if __name__ == "__main__":
    unittest.main(verbosity=1)
