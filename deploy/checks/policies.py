"""What the rendered Kubernetes manifests have to be, beyond being valid.

Each policy is a function from the documents of an overlay to the problems in them. self_test.py shows for
each that it finds what it is for.
"""

import manifests
from manifests import containers, named, of_kind, pod_spec, selects, workloads

# What a program may need beyond its drain to close its connections and end.
ENDING_SECONDS = 3
DRAIN_OF = {
    "gateway": "FLASHSALE__HTTP__DRAIN_DEADLINE",
    "worker": "FLASHSALE__WORKER__DRAIN_DEADLINE",
}
PROBES = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
VOLUMES = {"secret", "configMap", "emptyDir", "projected", "persistentVolumeClaim"}
PREPARE = ("rollout-phase", "prepare")


def component(document):
    return document["metadata"].get("labels", {}).get("app.kubernetes.io/component")


def images_are_pinned(documents):
    for workload in workloads(documents):
        for container in containers(pod_spec(workload)[1]):
            for problem in manifests.image_problems(container["image"]):
                yield f"{named(workload)}: {problem}"


def resources_are_set(documents):
    for workload in workloads(documents):
        for container in containers(pod_spec(workload)[1]):
            resources = container.get("resources", {})
            for kind, resource in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
                if resource not in resources.get(kind, {}):
                    yield f"{named(workload)}: container {container['name']} has no {kind}.{resource}"


def probes_fit_the_programs(documents):
    for workload in of_kind(documents, "Deployment", "StatefulSet"):
        for container in containers(pod_spec(workload)[1]):
            ports = {port["name"] for port in container.get("ports", [])}
            who = f"{named(workload)}: container {container['name']}"
            for probe in PROBES:
                action = container.get(probe, {})
                port = action.get("httpGet", action.get("tcpSocket", {})).get("port")
                if port is not None and port not in ports:
                    yield f"{who}: {probe} asks port {port}, and there are {sorted(ports)}"
            if component(workload) not in DRAIN_OF:
                continue
            for probe, path in PROBES.items():
                action = container.get(probe, {}).get("httpGet", {})
                if (action.get("port"), action.get("path")) != ("admin", path):
                    yield f"{who}: {probe} does not ask {path} of the admin port"


def the_drain_fits_the_grace(documents):
    known = manifests.settings()
    for workload in of_kind(documents, "Deployment"):
        if component(workload) not in DRAIN_OF:
            continue
        spec = pod_spec(workload)[1]
        variable = DRAIN_OF[component(workload)]
        drain = manifests.seconds(environment(documents, spec).get(variable, known[variable]))
        hooks = [container.get("lifecycle", {}).get("preStop") for container in spec["containers"]]
        before = max((hook["sleep"]["seconds"] for hook in hooks if hook), default=0)
        if component(workload) == "gateway" and before < 5:
            yield f"{named(workload)}: without a preStop of 5 s proxies still send to it when it ends"
        needed = before + drain + ENDING_SECONDS
        grace = spec.get("terminationGracePeriodSeconds", 30)
        if grace < needed:
            yield f"{named(workload)}: is killed after {grace} s, and may take {needed:g}"


def environment(documents, spec):
    """What the containers of a pod are given, from ConfigMaps too."""
    variables = {}
    for container in containers(spec):
        for source in container.get("envFrom", []):
            for config in of_kind(documents, "ConfigMap"):
                if config["metadata"]["name"] == source.get("configMapRef", {}).get("name"):
                    variables.update(config["data"])
        for variable in container.get("env", []):
            variables[variable["name"]] = variable.get("value")
    return variables


def settings_are_settings(documents):
    known = manifests.settings()
    for config in of_kind(documents, "ConfigMap"):
        if config["metadata"]["labels"].get("grafana_dashboard"):
            continue
        for variable, value in config["data"].items():
            if not variable.startswith("FLASHSALE__"):
                yield f"{named(config)}: {variable} is no setting"
            for problem in manifests.setting_problems(variable, value, known):
                yield f"{named(config)}: {problem}"
    for workload in workloads(documents):
        spec = pod_spec(workload)[1]
        for variable, value in environment(documents, spec).items():
            for problem in manifests.setting_problems(variable, value, known):
                yield f"{named(workload)}: {problem}"


def secrets_are_mounted_files(documents):
    for workload in workloads(documents):
        spec = pod_spec(workload)[1]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for container in containers(spec):
            files = set()
            for mount in container.get("volumeMounts", []):
                secret = volumes[mount["name"]].get("secret")
                if secret:
                    files |= {f"{mount['mountPath']}/{item['path']}" for item in secret["items"]}
            for variable in container.get("env", []):
                if "secretKeyRef" in variable.get("valueFrom", {}):
                    yield f"{named(workload)}: {variable['name']} shows a secret to whoever reads the environment"
                if variable["name"].endswith("_FILE") and variable.get("value") not in files:
                    yield f"{named(workload)}: {variable['name']} names a file that no Secret is mounted at"
            if any("secretRef" in source for source in container.get("envFrom", [])):
                yield f"{named(workload)}: a Secret becomes variables"


def the_network_is_closed(documents):
    policies = of_kind(documents, "NetworkPolicy")
    closed = [
        policy
        for policy in policies
        if policy["spec"]["podSelector"] == {}
        and set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        and not policy["spec"].get("ingress")
        and not policy["spec"].get("egress")
    ]
    if not closed:
        yield "no NetworkPolicy denies everything to every pod"
    for policy in policies:
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(direction, []):
                if not rule.get(peers) or not rule.get("ports"):
                    yield f"{named(policy)}: an {direction} rule without peers or without ports lets everybody in"
                for peer in rule.get(peers, []):
                    block = peer.get("ipBlock", {}).get("cidr", "")
                    if peer == {} or block.endswith("/0"):
                        yield f"{named(policy)}: a peer that is everybody"


def pods_are_restricted(documents):
    for workload in workloads(documents):
        spec = pod_spec(workload)[1]
        who = named(workload)
        pod = spec.get("securityContext", {})
        if pod.get("runAsNonRoot") is not True or not pod.get("runAsUser"):
            yield f"{who}: may run as root"
        if pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{who}: has no seccomp profile"
        if any(spec.get(host) for host in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{who}: shares something of its host"
        for volume in spec.get("volumes", []):
            if not VOLUMES & set(volume):
                yield f"{who}: volume {volume['name']} is of a kind that the restricted profile does not allow"
        for container in containers(spec):
            context = container.get("securityContext", {})
            if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
                yield f"{who}: container {container['name']} may gain privileges"
            if context.get("readOnlyRootFilesystem") is not True:
                yield f"{who}: container {container['name']} can write to its image"
            capabilities = context.get("capabilities", {})
            if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
                yield f"{who}: container {container['name']} has capabilities"


def nothing_is_handed_to_pods_unasked(documents):
    for workload in workloads(documents):
        spec = pod_spec(workload)[1]
        if spec.get("enableServiceLinks") is not False:
            yield f"{named(workload)}: every Service becomes variables (enableServiceLinks)"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{named(workload)}: a token of the cluster is mounted"


def targets_exist(documents):
    pods = [pod_spec(workload) for workload in workloads(documents)]
    services = {service["metadata"]["name"]: service for service in of_kind(documents, "Service")}
    for service in services.values():
        selector = {"matchLabels": service["spec"]["selector"]}
        chosen = [spec for labels, spec in pods if selects(selector, labels)]
        if not chosen:
            yield f"{named(service)}: selects no pod"
        for spec in chosen:
            ports = {port["name"] for c in containers(spec) for port in c.get("ports", [])}
            for port in service["spec"]["ports"]:
                if port["targetPort"] not in ports:
                    yield f"{named(service)}: no port {port['targetPort']} in its pods"
    for budget in of_kind(documents, "PodDisruptionBudget"):
        if not any(selects(budget["spec"]["selector"], labels) for labels, _ in pods):
            yield f"{named(budget)}: selects no pod"
    deployments = {deployment["metadata"]["name"] for deployment in of_kind(documents, "Deployment")}
    for scaler in of_kind(documents, "HorizontalPodAutoscaler", "ScaledObject"):
        if scaler["spec"]["scaleTargetRef"]["name"] not in deployments:
            yield f"{named(scaler)}: scales nothing"
    for monitor in of_kind(documents, "ServiceMonitor"):
        chosen = [s for s in services.values() if selects(monitor["spec"]["selector"], s["metadata"]["labels"])]
        components = {component(service) for service in chosen}
        if components != set(DRAIN_OF):
            yield f"{named(monitor)}: scrapes {sorted(map(str, components))}"
        for endpoint in monitor["spec"]["endpoints"]:
            for service in chosen:
                if endpoint["port"] not in {port["name"] for port in service["spec"]["ports"]}:
                    yield f"{named(monitor)}: {named(service)} has no port {endpoint['port']}"


def only_buyers_are_routed(documents):
    for ingress in of_kind(documents, "Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                service = path["backend"]["service"]
                if (service["name"], service["port"].get("name")) != ("flashsale-gateway", "http"):
                    yield f"{named(ingress)}: {path['path']} leads to {service['name']}"
        annotations = ingress["metadata"].get("annotations", {})
        for limit in ("limit-rps", "limit-connections", "proxy-body-size"):
            if f"nginx.ingress.kubernetes.io/{limit}" not in annotations:
                yield f"{named(ingress)}: has no {limit}"
        if "non_idempotent" in annotations.get("nginx.ingress.kubernetes.io/proxy-next-upstream", ""):
            yield f"{named(ingress)}: sends a POST twice"
    for service in of_kind(documents, "Service"):
        if service["spec"].get("type", "ClusterIP") != "ClusterIP":
            yield f"{named(service)}: can be reached from outside, past the Ingress"


def each_program_survives_a_node(documents):
    budgets = of_kind(documents, "PodDisruptionBudget")
    scaled = {
        scaler["spec"]["scaleTargetRef"]["name"]
        for scaler in of_kind(documents, "HorizontalPodAutoscaler", "ScaledObject")
    }
    for deployment in of_kind(documents, "Deployment"):
        labels, spec = pod_spec(deployment)
        if not any(selects(budget["spec"]["selector"], labels) for budget in budgets):
            yield f"{named(deployment)}: has no PodDisruptionBudget"
        spread = {constraint["topologyKey"] for constraint in spec.get("topologySpreadConstraints", [])}
        if "kubernetes.io/hostname" not in spread:
            yield f"{named(deployment)}: all its pods may be on one node"
        if deployment["metadata"]["name"] in scaled and "replicas" in deployment["spec"]:
            yield f"{named(deployment)}: a roll-out sets back what its autoscaler has set"
        if deployment["spec"]["strategy"].get("rollingUpdate", {}).get("maxUnavailable") != 0:
            yield f"{named(deployment)}: a roll-out takes one away before the next is there"


def workers_scale_on_what_they_ask_for(documents):
    for scaled in of_kind(documents, "ScaledObject"):
        spec = scaled["spec"]
        namespace = scaled["metadata"]["namespace"]
        if spec.get("minReplicaCount", 0) < 1 or spec.get("idleReplicaCount") == 0:
            yield f"{named(scaled)}: may leave no worker, and then nobody asks for one"
        trigger = spec["triggers"][0]
        expected = f'max(flashsale_desired_workers{{namespace="{namespace}"}})'
        if trigger["metadata"]["query"] != expected:
            yield f"{named(scaled)}: asks {trigger['metadata']['query']}, and not {expected}"
        if (trigger.get("metricType"), trigger["metadata"]["threshold"]) != ("AverageValue", "1"):
            yield f"{named(scaled)}: the value is not taken as the number of pods"
        if not spec.get("fallback", {}).get("replicas"):
            yield f"{named(scaled)}: without Prometheus nobody knows how many are wanted"


def the_migration_runs_first(documents):
    jobs = [job for job in of_kind(documents, "Job") if component(job) == "migration"]
    if len(jobs) != 1:
        yield f"there are {len(jobs)} migration Jobs"
    key, value = PREPARE
    prepared = {
        (document["kind"], document["metadata"]["name"])
        for document in documents
        if document["metadata"].get("labels", {}).get(key) == value
    }
    for document in of_kind(documents, "Deployment", "Ingress"):
        if (document["kind"], document["metadata"]["name"]) in prepared:
            yield f"{named(document)}: is applied before the migration"
    for job in jobs:
        labels, spec = pod_spec(job)
        needs = {("Job", job["metadata"]["name"]), ("ServiceAccount", spec["serviceAccountName"])}
        there = {(document["kind"], document["metadata"]["name"]) for document in documents}
        for volume in spec.get("volumes", []):
            # One that is not among the manifests is made by hand before.
            needs |= {("Secret", volume["secret"]["secretName"])} & there
        needs |= {
            (policy["kind"], policy["metadata"]["name"])
            for policy in of_kind(documents, "NetworkPolicy")
            if selects(policy["spec"]["podSelector"], labels)
        }
        for kind, name in sorted(needs - prepared):
            yield f"{named(job)}: {kind} {name} is not applied with it ({key}: {value})"


def everything_is_in_one_namespace(documents):
    namespaces = {
        document["metadata"].get("namespace", document["metadata"]["name"] if document["kind"] == "Namespace" else None)
        for document in documents
    }
    if len(namespaces) != 1:
        yield f"the namespaces are {sorted(map(str, namespaces))}"
    for namespace in of_kind(documents, "Namespace"):
        if namespace["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{named(namespace)}: does not insist on the restricted profile"


POLICIES = [
    images_are_pinned,
    resources_are_set,
    probes_fit_the_programs,
    the_drain_fits_the_grace,
    settings_are_settings,
    secrets_are_mounted_files,
    the_network_is_closed,
    pods_are_restricted,
    nothing_is_handed_to_pods_unasked,
    targets_exist,
    only_buyers_are_routed,
    each_program_survives_a_node,
    workers_scale_on_what_they_ask_for,
    the_migration_runs_first,
    everything_is_in_one_namespace,
]
