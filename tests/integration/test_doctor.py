"""`edge-client doctor` against verifiers that are well, and against all that can be wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.security import Access
from cloud_verifier.server import VerifierServer
from cloud_verifier.tls import ServerTls, TlsFiles
from cloud_verifier.tokens import add_token
from edge_client import EdgeClient, Mode, Result
from edge_client.doctor.drafting import acceptance
from edge_client.doctor.measured import Measured
from tests.support.certificates import Authority
from tests.support.edge import VerifierThread, asking, edge_client, tiny_verifier
from tests.support.serving import tiny_target
from tests.support.tiny_models import CHAT_TEMPLATE, FULL, write_tiny_gguf

NUMBER = (int, float)
MAYBE = (*NUMBER, type(None))
SPREAD = {"median_s": NUMBER, "p10_s": NUMBER, "p90_s": NUMBER, "count": int}
MEASURED: dict[str, Any] = {
    "rtt": dict,
    "round_trip": dict,
    "up_bit_s": MAYBE,
    "down_bit_s": type(None),
    "draft_load_s": MAYBE,
    "draft_s": MAYBE,
    "forward_s": MAYBE,
    "forward_many_s": MAYBE,
    "forward_many_drafts": int,
    "alpha": MAYBE,
    "examined": int,
}
EXPECTED: dict[str, Any] = {
    "tokens_per_s": dict,
    "way": str,
    "gamma": int,
    "window": int,
    "drafting_pays": bool,
    "why": str,
    "needed": list,
}


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(tiny_gguf) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("doctor")
    return str(write_tiny_gguf(folder / "near.gguf", chat_template=CHAT_TEMPLATE, noise=0.05))


class Guarded(VerifierThread):
    """A verifier that asks for what its `Access` says."""

    def __init__(self, path: Path, access: Access) -> None:
        self._access = access
        target = tiny_target(path)
        super().__init__(target.backend, target.encoder)

    def start(self) -> None:
        async def begin() -> VerifierServer:
            server = VerifierServer(
                self.backend,
                self.encoder,
                listen=self.address,
                limits=self._limits,
                access=self._access,
            )
            await server.start()
            return server

        self._server = self.run(begin())
        self.address = self._server.address


def doctor(server: str, draft: str, *more: str, token: str = "") -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object, and what else was said."""
    done = edge_client(
        *("doctor", "--server", server, "--draft", draft, "--threads", "1", "--json", *more),
        SPECWIRE_TOKEN=token,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def states(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["state"] for check in report["checks"]}


def check(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(check for check in report["checks"] if check["name"] == name)


def test_all_is_well(verifier: VerifierThread, draft: str) -> None:
    done = edge_client("doctor", "--server", verifier.address, "--draft", draft, "--threads", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    names = [
        line.split()[1] for line in done.stdout.split("\n\n")[0].splitlines() if "→" not in line
    ]
    assert names == [
        *("address", "TLS", "token", "protocol", "model", "draft", "vocabulary", "chat"),
        *("round", "rate", "verify", "draft", "acceptance"),
    ]
    assert "failed" not in done.stdout and "\x1b" not in done.stdout + done.stderr
    for part in ("will run: ", "because:  auto", "expected: sync", "pipeline", "run-ahead"):
        assert part in done.stdout
    assert verifier.attached == 0


def test_an_encoding_that_lacks_characters_ends_nothing(
    verifier: VerifierThread, draft: str
) -> None:
    args = ("doctor", "--server", verifier.address, "--draft", draft, "--threads", "1")
    done = edge_client(*args, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "? 0." in done.stdout and "will run: " in done.stdout


def test_the_json_object_has_every_key(verifier: VerifierThread, draft: str) -> None:
    code, report, said = doctor(verifier.address, draft)
    assert (code, said) == (0, "")
    assert set(report) == {"server", "draft", "exit_code", "checks", "measured", "expected"}
    assert (report["server"], report["draft"], report["exit_code"]) == (verifier.address, draft, 0)
    for item in report["checks"]:
        assert set(item) == {"name", "state", "text", "cure"}
        assert item["state"] in ("ok", "warning", "failed")
        assert (item["cure"] == "") == (item["state"] == "ok")
    for name, keys in (("measured", MEASURED), ("expected", EXPECTED)):
        assert set(report[name]) == set(keys)
        for key, kind in keys.items():
            assert isinstance(report[name][key], kind), key
    for key in ("rtt", "round_trip"):
        assert set(report["measured"][key]) == set(SPREAD)
    measured = report["measured"]
    assert 0 < measured["alpha"] <= 1 and measured["examined"] > 10
    assert 0 < measured["draft_s"] < 1 and 0 < measured["forward_s"] < 5
    assert measured["forward_many_drafts"] == 8
    assert set(report["expected"]["tokens_per_s"]) == {"stream", "sync", "pipeline", "run-ahead"}


def test_without_a_draft(verifier: VerifierThread) -> None:
    code, report, _ = doctor(verifier.address, "none")
    assert code == 0
    found = states(report)
    assert found["draft"] == "warning" and "vocabulary" not in found and "acceptance" not in found
    assert report["draft"] is None
    assert report["expected"]["way"] == "stream"
    assert set(report["expected"]["tokens_per_s"]) == {"stream"}
    assert "no draft" in report["expected"]["why"]


def test_lookup_needs_no_model(verifier: VerifierThread) -> None:
    code, report, _ = doctor(verifier.address, "none", "--drafts", "lookup", "--temperature", "0")
    assert code == 0
    assert check(report, "draft")["state"] == "ok"
    assert report["expected"] is not None


def test_a_mode_that_is_asked_for(verifier: VerifierThread, draft: str) -> None:
    _, report, _ = doctor(verifier.address, draft, "--mode", "sync", "--gamma", "2")
    assert (report["expected"]["way"], report["expected"]["gamma"]) == ("sync", 2)
    _, report, _ = doctor(verifier.address, draft, "--mode", "stream")
    assert report["expected"]["way"] == "stream"
    assert report["expected"]["why"] == "--mode stream asks for no drafts"


class RuleClient(EdgeClient):
    """Remembers by which rule its answers were verified."""

    rules: set[str]

    async def complete(self, *args: Any, **asked: Any) -> Result:
        result = await super().complete(*args, **asked)
        self.rules.add(result.verification)
        return result


@pytest.mark.parametrize("mode", list(Mode)[:4])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
async def test_acceptance_is_measured_by_the_rule_that_will_run(
    verifier: VerifierThread, draft: str, mode: Mode, temperature: float
) -> None:
    options = asking(mode=mode, temperature=temperature)
    async with RuleClient(verifier.address, draft=draft, threads=1) as client:
        client.rules = set()
        await acceptance(client, options, Measured(), chat=True, context=256)
        used = set(client.rules)
        await client.complete("Hello", options=options)
        assert used == client.rules


def test_nobody_listens(draft: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, report, _ = doctor(address, draft)
    assert code == 3
    assert states(report) == {"address": "failed", "draft": "ok"}
    assert "cloud-verifier" in check(report, "address")["cure"]
    assert report["expected"] is None


def test_a_name_without_an_address() -> None:
    code, report, _ = doctor("no-such-verifier.invalid:7710", "none")
    assert code == 3
    assert "has no address" in check(report, "address")["text"]


def test_a_wrong_token(tiny_gguf: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    good = add_token(tokens, "laptop")
    with Guarded(tiny_gguf, Access(token_file=tokens)) as verifier:
        for token, state, cure in (
            ("not-the-token", "failed", "ask the operator"),
            ("", "failed", "--token-file"),
            (good, "ok", ""),
        ):
            code, report, _ = doctor(verifier.address, "none", token=token)
            found = check(report, "token")
            assert (found["state"], code) == (state, 0 if state == "ok" else 1)
            assert cure in found["cure"]
            assert not token or token not in json.dumps(report)


def test_tls_to_a_plain_port(verifier: VerifierThread) -> None:
    code, report, _ = doctor(verifier.address, "none", "--tls")
    assert code == 1
    found = check(report, "TLS")
    assert found["state"] == "failed" and "speaks no TLS" in found["text"]
    assert "leave TLS out" in found["cure"]


def test_plain_text_to_a_tls_port_and_tls_done_right(tiny_gguf: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    tls = ServerTls(TlsFiles(pair.cert, pair.key))
    with Guarded(tiny_gguf, Access(tls=tls)) as verifier:
        code, report, _ = doctor(verifier.address, "none")
        assert code == 3
        assert "--tls" in check(report, "TLS")["cure"]
        code, report, _ = doctor(verifier.address, "none", "--tls-ca", str(authority.cert))
        assert code == 0
        assert check(report, "TLS")["text"].startswith("TLSv1.")
        code, report, _ = doctor(verifier.address, "none", "--tls")
        assert code == 1
        assert "--tls-ca" in check(report, "TLS")["cure"]


def test_another_vocabulary(verifier: VerifierThread, tmp_path: Path) -> None:
    other = write_tiny_gguf(tmp_path / "other.gguf", vocabulary=FULL[:-1])
    code, report, _ = doctor(verifier.address, str(other))
    assert code == 1
    assert states(report)["vocabulary"] == "failed"
    assert "family" in check(report, "vocabulary")["cure"]
    assert report["expected"]["way"] == "stream"
    assert report["measured"]["alpha"] is None


def test_a_draft_that_is_not_there(verifier: VerifierThread, tmp_path: Path) -> None:
    code, report, _ = doctor(verifier.address, str(tmp_path / "no.gguf"))
    assert code == 1
    assert states(report)["draft"] == "failed"
    assert states(report)["verify time"] == "ok"  # the rest is examined all the same


def test_a_stand_in(verifier: VerifierThread, tiny_gguf: Path) -> None:
    with tiny_verifier(tiny_gguf) as second, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
        code, report, _ = doctor(
            verifier.address, "none", "--server", second.address, "--server", gone
        )
    assert code == 0
    found = [check for check in report["checks"] if check["name"] == "stand-in"]
    assert [check["state"] for check in found] == ["ok", "warning"]
