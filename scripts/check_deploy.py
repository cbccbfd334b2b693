"""Check that what lies in deploy/ agrees with the verifier, and lint it.

    python -m scripts.check_deploy

A flag, variable, metric or service that the verifier does not have is found here and not in a
cluster at night. No Docker, cluster or network is needed; the linters come as Python packages.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from cloud_verifier.configuration import load_settings
from cloud_verifier.metrics import Metrics
from cloud_verifier.options import OPTIONS, PREFIX
from cloud_verifier.settings import check_exposure
from specwire.errors import BadRequest
from specwire.v1 import verifier_pb2 as pb

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("", pb.DESCRIPTOR.services_by_name["Verifier"].full_name)
VARIABLES = {option.variable for option in OPTIONS} | {f"{PREFIX}CONFIG", f"{PREFIX}TOKEN"}
FLAGS = {option.flag for option in OPTIONS} | {"--config", "--verbose"}
KUBERNETES = ("1.30", "1.37")
"""Oldest and newest version whose schemas the manifests must meet: preStop's sleep came in 1.30."""

OVERTIME_S = 2.0
"""What a verifier may take after its grace time."""

_METRIC = re.compile(r"\bspecwire_[a-z_]+\b(?:\{([^}]*)\})?")
_VARIABLE = re.compile(rf"\b{PREFIX}[A-Z_]+\b")
_SERVE = re.compile(r"cloud-verifier serve((?:\\\n|[^`\n])*)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}


def main() -> int:
    """Print what is wrong; the exit status is 1 if anything is."""
    found = [*problems(ROOT), *lint(ROOT)]
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


def problems(root: Path) -> Iterator[str]:
    """What does not agree with the verifier, one line each."""
    yield from names(root)
    yield from container(root)
    compose = yaml.safe_load((root / "deploy/compose.yaml").read_text("utf-8"))
    verifier = compose["services"]["verifier"]
    environment = {**image_environment(root), **verifier["environment"]}
    yield from _prefixed("compose.yaml", settings(environment))
    yield from _prefixed("compose.yaml", grace(environment, verifier["stop_grace_period"], 0))
    gpu = yaml.safe_load((root / "deploy/compose.gpu.yaml").read_text("utf-8"))
    laid_over = gpu["services"]["verifier"]["environment"]
    yield from _prefixed("compose.gpu.yaml", settings({**environment, **laid_over}))
    deployment = root / "deploy/kubernetes/deployment.yaml"
    yield from _prefixed(
        deployment.name, pod(yaml.safe_load(deployment.read_text("utf-8")), image_environment(root))
    )
    for where, expression in queries(root):
        yield from _prefixed(where, query(expression))


def _prefixed(where: str, found: Iterator[str]) -> Iterator[str]:
    return (f"{where}: {problem}" for problem in found)


# ------------------------------------------------------------------------------- names


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Name and content of every file that speaks of the verifier's settings and metrics."""
    for path in sorted((root / "deploy").rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and "secrets" not in path.parts:
            yield str(path.relative_to(root)), path.read_text("utf-8")
    yield "docs/operate.md", (root / "docs/operate.md").read_text("utf-8")


def names(root: Path) -> Iterator[str]:
    """Variables, flags and metrics that there are not."""
    known = metric_names()
    for where, text in texts(root):
        for name in sorted(set(_VARIABLE.findall(text)) - VARIABLES):
            yield f"{where}: {name} is no setting"
        for arguments in _SERVE.findall(text):
            for flag in sorted(set(_FLAG.findall(arguments)) - FLAGS):
                yield f"{where}: cloud-verifier serve has no {flag}"
        for match in _METRIC.finditer(text):
            if match[0].partition("{")[0] not in known:
                yield f"{where}: there is no metric {match[0]}"


class _Blocks:
    count = used = kept = 1


@functools.cache
def metric_names() -> dict[str, dict[str, set[str]]]:
    """Every series that a verifier shows, and the values of its labels as far as they are fixed."""
    metrics = Metrics()
    metrics.describe("model")
    metrics.watch_sessions(lambda: 0, lambda: 0)
    metrics.watch_blocks(_Blocks())
    known: dict[str, dict[str, set[str]]] = {}
    for family in metrics.registry.collect():
        for suffix in ("", *_SUFFIXES.get(family.type, ())):
            known.setdefault(family.name + suffix, {})
        for sample in family.samples:
            labels = known.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    codes = {name.removeprefix("ERROR_CODE_").lower() for name in pb.ErrorCode.keys()}  # noqa: SIM118
    known["specwire_refused_total"]["code"] = codes
    return known


# ----------------------------------------------------------------------------- queries


def queries(root: Path) -> Iterator[tuple[str, str]]:
    """Where and what: every PromQL expression of dashboard and alerts."""
    dashboard = json.loads((root / "deploy/grafana/dashboards/specwire.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield f"dashboard, {panel['title']}", target["expr"]
    rules = yaml.safe_load((root / "deploy/alerts.yml").read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield f"alerts.yml, {rule['alert']}", rule["expr"]


def query(expression: str) -> Iterator[str]:
    """What is wrong with a PromQL expression: its grammar, its series, its labels' values."""
    filled = re.sub(r"\$__\w+", "5m", expression)
    try:
        promql_parser.parse(filled)
    except ValueError as error:
        yield f"{expression!r} is no PromQL: {error}"
        return
    known = metric_names()
    for match in _METRIC.finditer(expression):
        labels = known.get(match[0].partition("{")[0], {})
        for label, value in re.findall(r'(\w+)="([^"]*)"', match[1] or ""):
            if label not in labels:
                yield f"{match[0]}: there is no label {label}"
            elif value not in labels[label]:
                yield f"{match[0]}: {label} is never {value}"


# ---------------------------------------------------------------------------- settings


def settings(environment: Mapping[str, str]) -> Iterator[str]:
    """What a verifier with these variables would say before it loads its model."""
    try:
        check_exposure(load_settings({}, environment).settings)
    except BadRequest as error:
        yield str(error)


def grace(environment: Mapping[str, str], allowed: str | float, before: float) -> Iterator[str]:
    """Whether a stop takes longer than the platform waits; `before`: seconds of preStop."""
    given = {name: environment[name] for name in ("SPECWIRE_GRACE",) if name in environment}
    loaded = load_settings({"model": "any"}, given)
    needed = before + loaded.settings.grace_s + OVERTIME_S
    if float(str(allowed).removesuffix("s")) <= needed:
        yield f"a stop may take {needed:g} s, but the platform waits only {allowed}"


def pod(deployment: Mapping[str, Any], image: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the verifier's Deployment."""
    spec = deployment["spec"]["template"]["spec"]
    (verifier,) = spec["containers"]
    environment = {**image, **{entry["name"]: entry["value"] for entry in verifier["env"]}}
    yield from settings(environment)
    sleep = verifier.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    yield from grace(environment, spec["terminationGracePeriodSeconds"], sleep)
    for flag in sorted(set(_FLAG.findall(" ".join(verifier["args"]))) - FLAGS):
        yield f"cloud-verifier serve has no {flag}"
    ports = {str(port["containerPort"]) for port in verifier["ports"]}
    for variable in ("SPECWIRE_LISTEN", "SPECWIRE_METRICS"):
        if environment[variable].rpartition(":")[2] not in ports:
            yield f"{variable} is {environment[variable]}, a port that the pod does not declare"
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield from _prefixed(kind, probe(verifier[kind], environment))
    mounts = [mount["mountPath"] for mount in verifier["volumeMounts"]]
    for name, value in environment.items():
        if value.startswith("/") and not any(value.startswith(f"{m}/") for m in mounts):
            yield f"{name} is {value}, where nothing is mounted"


def probe(handler: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with a probe."""
    if "grpc" in handler:
        service = handler["grpc"].get("service", "")
        if environment.get("SPECWIRE_TLS_CERT"):
            yield "the kubelet's gRPC probes speak no TLS"
    else:
        given = [a for a in handler["exec"]["command"] if a.startswith("--service=")]
        service = given[0].partition("=")[2] if given else SERVICES[-1]
    if service not in SERVICES:
        yield f"there is no service {service!r}"


# --------------------------------------------------------------------------- container


def image_environment(root: Path) -> dict[str, str]:
    """The verifier's variables that the image sets, for every target."""
    text = (root / "deploy/Dockerfile").read_text("utf-8")
    common = text.partition("FROM runtime AS")[0]
    return dict(re.findall(rf"\b({PREFIX}[A-Z_]+)=(\S+)", common))


def container(root: Path) -> Iterator[str]:
    """What is wrong with the Dockerfile."""
    text = (root / "deploy/Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    for extra in sorted(set(extras.split(",")) - set(project["optional-dependencies"])):
        yield f"Dockerfile: pyproject.toml has no extra {extra}"
    allowed = (root / "deploy/Dockerfile.dockerignore").read_text("utf-8").splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                if not (root / source).exists():
                    yield f"Dockerfile: {source} does not exist"
                if f"!{source}" not in allowed:
                    yield f"Dockerfile.dockerignore keeps {source} from the builder"
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    if not users or users[-1].partition(":")[0] in ("0", "root"):
        yield "Dockerfile: the verifier would run as root"
    if "index-url" in text or "https://" in text:
        yield "Dockerfile: packages come from where pip is set up to look, not from a URL"


# ------------------------------------------------------------------------------- lint


def lint(root: Path) -> Iterator[str]:
    """What hadolint, yamllint and Kubernetes' own schemas find."""
    deploy = root / "deploy"
    builtin = [path for path in sorted((deploy / "kubernetes").glob("*.yaml")) if _is_builtin(path)]
    yield from _run("hadolint", deploy / "Dockerfile")
    yield from _run("yamllint", "--strict", "-c", deploy / ".yamllint.yaml", deploy)
    for version in KUBERNETES:
        yield from _run("kubernetes-validate", "-k", version, "--strict", "--quiet", *builtin)


def _is_builtin(path: Path) -> bool:
    # Schemas of what operators add to a cluster are not among Kubernetes' own.
    documents = yaml.safe_load_all(path.read_text("utf-8"))
    return all(
        ".coreos.com" not in document["apiVersion"] and document["kind"] != "Kustomization"
        for document in documents
    )


def _run(tool: str, *arguments: str | Path) -> Iterator[str]:
    command = [str(Path(sys.executable).parent / tool), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"{tool}: {(done.stdout + done.stderr).strip()}"


if __name__ == "__main__":
    sys.exit(main())
