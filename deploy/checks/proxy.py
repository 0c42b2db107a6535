"""What nginx's configuration has to be, beyond being valid: it agrees with the gateway's settings and the
Ingress, which have the same limits in other words."""

import re
import shutil

import manifests
from manifests import ROOT

FOLDER = ROOT / "deploy/nginx"
INGRESS = ROOT / "deploy/k8s/base/ingress.yaml"
SIZES = {"": 1, "k": 1024, "m": 1024 * 1024}
# How often an event stream says something (crates/gateway/src/routes/events.rs).
HEARTBEAT_S = 15
# The longest ?wait= (docs/api.md).
WAIT_S = 30


def texts():
    """Every file of the configuration → its text without comments."""
    files = sorted(FOLDER.glob("*.conf")) + sorted(FOLDER.glob("site/*.conf"))
    return {
        str(file.relative_to(FOLDER)): re.sub(r"(?m)^\s*#.*$", "", file.read_text(encoding="utf-8")) for file in files
    }


def copy(folder):
    """A copy that nginx can test here: names that are known elsewhere and folders that are not ours are
    replaced, and TLS, which a deployment turns on, is read too. Returns its main file."""
    target = folder / "nginx"
    shutil.copytree(FOLDER, target)
    for name, old, new in [
        ("gateways.conf", "gateway:8080", "127.0.0.1:8080"),
        ("paths.conf", "/var/cache/nginx", str(folder / "cache")),
        ("paths.conf", "/dev/stdout", str(folder / "access.log")),
        ("listen.conf", "listen 8080", "include tls.conf;\nlisten 8080"),
    ]:
        file = target / "site" / name
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    (folder / "cache").mkdir()
    return target / "nginx.conf"


def size(text):
    number, unit = re.fullmatch(r"(\d+)([km]?)", text).groups()
    return int(number) * SIZES[unit]


class Values:
    """Of directives, wherever they stand."""

    def __init__(self, files):
        self.text = "\n".join(files.values())
        self.problems = []

    def find(self, pattern):
        """The groups of the first directive that matches."""
        found = re.search(pattern, self.text)
        if not found:
            self.problems.append(f"there is no {pattern}")
            return None
        return found.groups() if len(found.groups()) > 1 else found.group(1)

    def location(self, start):
        """What stands in the location that begins so."""
        _, _, rest = self.text.partition(f"location {start}")
        return rest.partition("\n    }")[0]


def compare(values, what, ours, other, theirs):
    if ours is not None and ours != theirs:
        values.problems.append(f"{what} is {ours}, and {theirs} in {other}")


def limits(values, annotations):
    ingress = {key.rpartition("/")[2]: value for key, value in annotations.items()}
    rate = values.find(r"limit_req_zone .* rate=(\d+)r/s;")
    burst = values.find(r"limit_req zone=\w+ burst=(\d+) nodelay;")
    connections = values.find(r"limit_conn \w+ (\d+);")
    body = values.find(r"client_max_body_size (\w+);")
    compare(values, "requests a second", rate, "the Ingress", ingress["limit-rps"])
    if rate and burst:
        expected = str(int(rate) * int(ingress["limit-burst-multiplier"]))
        compare(values, "the burst", burst, "the Ingress", expected)
    compare(values, "connections", connections, "the Ingress", ingress["limit-connections"])
    compare(values, "the body", body, "the Ingress", ingress["proxy-body-size"])
    told = f"{rate} requests a second, and have {connections} at a time"
    if told not in values.text:
        values.problems.append(f"who is limited is not told {told!r}")


def settings(values, known):
    body = values.find(r"client_max_body_size (\w+);")
    if body:
        compare(values, "the body", size(body), "http.body_limit_bytes", known["FLASHSALE__HTTP__BODY_LIMIT_BYTES"])
        if f"a body has at most {size(body)} bytes" not in values.text:
            values.problems.append(f"who sends more is not told that a body has at most {size(body)} bytes")
    head = values.find(r"large_client_header_buffers (\d+) (\w+);")
    if head:
        compare(
            values, "the head", int(head[0]) * size(head[1]), "http.head_limit_bytes",
            known["FLASHSALE__HTTP__HEAD_LIMIT_BYTES"],
        )
    idle = values.find(r"keepalive 64;\s+keepalive_timeout (\w+);")
    if idle and manifests.seconds(idle) >= manifests.seconds(known["FLASHSALE__HTTP__KEEP_ALIVE"]):
        values.problems.append(f"connections are idle for {idle}, and the gateway closes them (http.keep_alive)")


def locations(values):
    repeats = [part for part in re.findall(r"proxy_next_upstream ([^;]+);", values.text) if "non_idempotent" in part]
    if len(repeats) != 1 or "non_idempotent" not in values.location("/repeatable/"):
        values.problems.append("a POST is sent twice elsewhere than where its key allows it")
    if "internal;" not in values.location("/repeatable/"):
        values.problems.append("anybody can ask for /repeatable/")
    for start, least in (("~ ^/api/v1/(?:sales|orders)/[^/]+/events$", HEARTBEAT_S), ("~ ^/api/v1/orders(?:", WAIT_S)):
        found = re.search(r"proxy_read_timeout (\w+);", values.location(start))
        if not found or manifests.seconds(found.group(1)) <= least:
            values.problems.append(f"{start} is given up within the {least} s that an answer may take")
    if "proxy_buffering off;" not in values.location("~ ^/api/v1/(?:sales|orders)/[^/]+/events$"):
        values.problems.append("events are collected")
    if values.text.count("proxy_cache sales;") != 1 or "proxy_cache sales;" not in values.location("~ ^/api/v1/sales(?:"):
        values.problems.append("something else than sales is kept")
    if "return 404;" not in values.location("/ {"):
        values.problems.append("what is not named is routed")
    for word in ("admin", "metrics", "livez", "readyz"):
        if re.search(rf"location [^\n]*{word}", values.text):
            values.problems.append(f"{word} is routed")


def problems(files, known=None, annotations=None):
    """What is wrong with the whole."""
    known = manifests.settings() if known is None else known
    annotations = manifests.load(INGRESS)[0]["metadata"]["annotations"] if annotations is None else annotations
    values = Values(files)
    limits(values, annotations)
    settings(values, known)
    locations(values)
    protocols = values.find(r"ssl_protocols ([^;]+);")
    if protocols and set(protocols.split()) != {"TLSv1.2", "TLSv1.3"}:
        values.problems.append(f"TLS may be {protocols}")
    if "ssl_early_data off;" not in values.text:
        values.problems.append("an order in early data can be sent again by anybody")
    return values.problems
