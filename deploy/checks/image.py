"""What the Dockerfile has to be, beyond hadolint's rules."""

import re
import subprocess
import tempfile
import tomllib

import manifests
from manifests import ROOT

FILE = ROOT / "deploy/docker/Dockerfile"
# What the compiler reads: a test that reads a file when it runs is no part of the image.
INCLUDE = re.compile(r'include_(?:str|bytes)!\(\s*(?:concat!\(\s*)?"(?:\.\./)+([a-z_-]+)/')


def problems(text):
    """What is wrong with its text."""
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    for name in ("RUST_IMAGE", "BASE_IMAGE"):
        yield from manifests.image_problems(arguments.get(name, name))
    toolchain = re.search(r":(\d+)\.(\d+)", arguments.get("RUST_IMAGE", ""))
    needed = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    if not toolchain or tuple(map(int, toolchain.groups())) < tuple(map(int, needed.split(".")[:2])):
        yield f"it builds with an older Rust than {needed}"
    final = text.rpartition("\nFROM ")[2]
    user = re.search(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
    if not user or user.group(1) == "0":
        yield "the image's user is no number, or root"
    for word in ("HEALTHCHECK", "org.opencontainers.image.revision", "org.opencontainers.image.version"):
        if word not in final:
            yield f"the image has no {word}"
    known = manifests.settings()
    for variable, value in re.findall(r"\b(FLASHSALE__\w+)=(\S+)", final):
        yield from manifests.setting_problems(variable, value, known)


def context_problems(ignored=None):
    """What the build needs and .dockerignore keeps from it."""
    ignored = (ROOT / ".dockerignore").read_text() if ignored is None else ignored
    kept = {line[1:] for line in ignored.splitlines() if line.startswith("!")}
    for file in ROOT.glob("crates/*/src/**/*.rs"):
        for folder in INCLUDE.findall(file.read_text(encoding="utf-8")):
            if (ROOT / folder).is_dir() and folder not in kept:
                yield f"{file.relative_to(ROOT)} reads from {folder}/, which .dockerignore keeps out"


def skeleton_problems():
    """Whether Cargo takes the workspace of the dependency layer for one."""
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/skeleton"
        made = subprocess.run(["deploy/docker/skeleton.sh", target], cwd=ROOT, capture_output=True, text=True)
        if made.returncode != 0:
            yield f"skeleton.sh: {made.stderr}"
            return
        asked = ["cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"]
        cargo = subprocess.run(asked, cwd=target, capture_output=True, text=True)
        if cargo.returncode != 0:
            yield f"skeleton: {cargo.stderr}"
