"""What lies in deploy/ agrees with the verifier, and its check notices what does not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import yaml
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cloud_verifier.server import SERVICE_NAME
from cloud_verifier.tls import ServerTls, TlsFiles
from deploy import healthcheck
from scripts import check_deploy
from tests.support.certificates import Authority, Pair

ROOT = check_deploy.ROOT


def test_everything_agrees() -> None:
    assert list(check_deploy.problems(ROOT)) == []


def test_the_linters_find_nothing() -> None:
    assert list(check_deploy.lint(ROOT)) == []


DEPLOYMENT = "deploy/kubernetes/deployment.yaml"
COMPOSE = "deploy/compose.yaml"
DASHBOARD = "deploy/grafana/dashboards/specwire.json"


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        (DEPLOYMENT, "SPECWIRE_SESSIONS\n", "SPECWIRE_SESSION\n", "no setting"),
        (DEPLOYMENT, "value: 40G ", "value: 40 gigs ", "SPECWIRE_KV_MEMORY is"),
        (DEPLOYMENT, "args: [serve]", "args: [serve, --sesions, '4']", "no --sesions"),
        (DEPLOYMENT, "GracePeriodSeconds: 30", "GracePeriodSeconds: 17", "may take 17 s"),
        (DEPLOYMENT, "service=specwire.v1.Verifier", "service=specwire.Verifier", "no service"),
        (DEPLOYMENT, "0.0.0.0:9464", "0.0.0.0:9465", "does not declare"),
        (DEPLOYMENT, "mountPath: /etc/specwire/tls", "mountPath: /tls", "nothing is mounted"),
        (DEPLOYMENT, "SPECWIRE_TOKENS\n", "HF_HOME\n", "anyone may use it"),
        (COMPOSE, "stop_grace_period: 20s", "stop_grace_period: 10s", "may take 12 s"),
        (COMPOSE, "      SPECWIRE_TLS_KEY: /run/secrets/tls.key\n", "", "TLS needs both"),
        (DASHBOARD, "specwire_rounds_total", "specwire_round_total", "no metric"),
        (DASHBOARD, "state=\\\"attached\\\"", "state=\\\"open\\\"", "never open"),
        (DASHBOARD, "sum by (kind) (", "sum by (kind (", "no PromQL"),
        ("deploy/alerts.yml", 'code="exhausted"', 'code="exausted"', "never exausted"),
        ("deploy/Dockerfile", "EXTRAS=cloud,otel", "EXTRAS=clod", "no extra clod"),
        ("deploy/Dockerfile", "USER 10001:10001", "USER root", "as root"),
        ("deploy/Dockerfile", "COPY netsim netsim", "COPY netsims netsim", "does not exist"),
        ("deploy/Dockerfile.dockerignore", "!proto\n", "", "keeps proto"),
        ("docs/operate.md", "--metrics 9464\n```", "--metric 9464\n```", "no --metric"),
    ],
)  # fmt: skip
def test_a_disagreement_is_noticed(
    checkout: Path, file: str, old: str, new: str, problem: str
) -> None:
    text = (checkout / file).read_text("utf-8")
    assert old in text
    (checkout / file).write_text(text.replace(old, new), "utf-8")

    found = list(check_deploy.problems(checkout))

    assert found
    assert any(problem in line for line in found), found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the check reads."""
    shutil.copytree(
        ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "docs").mkdir()
    for name in ("docs/operate.md", "pyproject.toml", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("proto", "edge_client", "cloud_verifier", "netsim"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_rolling_update_leaves_as_many_verifiers_as_there_were() -> None:
    manifest = yaml.safe_load((ROOT / DEPLOYMENT).read_text("utf-8"))
    update = manifest["spec"]["strategy"]["rollingUpdate"]

    assert update["maxUnavailable"] == 0
    assert update["maxSurge"] >= 1


def test_no_file_holds_a_secret() -> None:
    for where, text in check_deploy.texts(ROOT):
        assert "PRIVATE KEY" not in text, where
        assert "sha256$" not in text, where


# ------------------------------------------------------------------------ the probe


def test_the_probe_asks_for_the_service_that_there_is() -> None:
    assert healthcheck.SERVICE == SERVICE_NAME


def test_the_probe_tells_serving_from_stopping(capsys: pytest.CaptureFixture[str]) -> None:
    with health_server() as (address, servicer):
        environment = {"SPECWIRE_LISTEN": address.replace("127.0.0.1", "0.0.0.0")}
        assert healthcheck.main([], environment) == 0

        servicer.enter_graceful_shutdown()

        assert healthcheck.main([], environment) == 1
        assert "not serving" in capsys.readouterr().out


def test_the_probe_fails_where_nobody_listens() -> None:
    assert healthcheck.main(["--address", "127.0.0.1:1", "--timeout", "2"], {}) == 1


def test_the_probe_accepts_whatever_certificate_its_verifier_shows(tmp_path: Path) -> None:
    server = Authority(tmp_path).issue("server", hosts=("verifier.example",))
    with health_server(ServerTls(TlsFiles(server.cert, server.key))) as (address, _):
        environment = {"SPECWIRE_LISTEN": address, "SPECWIRE_TLS_CERT": str(server.cert)}
        assert healthcheck.main([], environment) == 0
        assert healthcheck.main([], {**environment, "SPECWIRE_TLS_CERT": "none"}) == 1


def test_the_probe_needs_a_certificate_where_clients_do(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, own = authority.issue("server"), authority.issue("probe", "probe")
    tls = ServerTls(TlsFiles(server.cert, server.key, authority.cert))
    with health_server(tls) as (address, _):
        environment = {"SPECWIRE_LISTEN": address, "SPECWIRE_TLS_CERT": str(server.cert)}
        assert healthcheck.main([], environment) == 1
        assert healthcheck.main([], {**environment, **shown(own)}) == 0


def shown(pair: Pair) -> dict[str, str]:
    return {"PROBE_CERT": str(pair.cert), "PROBE_KEY": str(pair.key)}


@contextmanager
def health_server(tls: ServerTls | None = None) -> Iterator[tuple[str, health.HealthServicer]]:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    servicer.set(SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
    if tls is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", tls.credentials())
    server.start()
    try:
        yield f"127.0.0.1:{port}", servicer
    finally:
        server.stop(0).wait()
