"""`cloud-verifier serve` as an operator meets it: settings, metrics, reloads, refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from cloud_verifier.tokens import add_token, revoke_token
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from tests.support.certificates import Authority
from tests.support.drafter import open_frame, point
from tests.support.processes import run_python
from tests.support.verifier_process import verifier_process


def stub_at(address: str) -> Iterator[Any]:
    with grpc.insecure_channel(address) as channel:
        yield rpc.VerifierStub(channel)


def one_round(stub: Any, **call: Any) -> pb.Opened:
    """Opens a session and asks for one token in it."""
    opened: pb.Opened = stub.Verify(
        pb.VerifyRequest(open=open_frame([1, 3], max_tokens=9)), timeout=10, **call
    ).opened
    request = pb.VerifyRequest(
        session_id=opened.session_id, frontier=2, proposal=point(1, 1, 2, [4])
    )
    assert stub.Verify(request, timeout=10, **call).frontier > 2
    return opened


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from cloud_verifier.cli import main; sys.exit(main(sys.argv[1:]))"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        return run_python(code, *arguments)


def test_settings_metrics_and_logs_of_a_running_verifier(tmp_path: Path):
    config = tmp_path / "verifier.toml"
    config.write_text('gamma = 5\nmetrics = "127.0.0.1:0"\nlog_format = "json"\n')
    with verifier_process(
        tmp_path / "log", "--config", str(config), "-v", SPECWIRE_SESSIONS="7"
    ) as running:
        for stub in stub_at(running.address):
            limits = stub.Describe(pb.DescribeRequest(), timeout=10).limits
            assert (limits.gamma, limits.sessions) == (5, 7)
            opened = one_round(stub)
            with pytest.raises(grpc.RpcError):
                stub.Verify(pb.VerifyRequest(session_id=b"?" * 16), timeout=10)
        log = running.log.read_text()
        assert f"gamma=5 ({config})" in log and "sessions=7 (SPECWIRE_SESSIONS)" in log
        url = log.partition("metrics on ")[2].partition('"')[0]
        with urllib.request.urlopen(url, timeout=5) as answer:
            metrics = answer.read().decode().splitlines()
        assert "specwire_rounds_total 1.0" in metrics
        assert 'specwire_sessions{state="detached"} 1.0' in metrics
        assert 'specwire_refused_total{code="no_session"} 1.0' in metrics
        assert 'specwire_draft_examined_total{position="1"} 1.0' in metrics
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(10) == 0
        log = running.log.read_text()
    records = [json.loads(line) for line in log.splitlines()]  # every line is one
    assert records[0]["message"].startswith("settings: ")
    rounds = [record for record in records if record["message"] == "round"]
    assert [(r["session"], r["round"]) for r in rounds] == [(opened.session_id.hex()[:8], 1)]
    assert opened.session_id.hex() not in log


def test_sighup_reloads_tokens_and_a_broken_file_changes_nothing(tmp_path: Path):
    file = tmp_path / "tokens"
    alice = add_token(file, "alice")
    with verifier_process(tmp_path / "log", "--tokens", str(file)) as running:

        def works(token: str) -> bool:
            for stub in stub_at(running.address):
                try:
                    stub.Describe(
                        pb.DescribeRequest(),
                        timeout=10,
                        metadata=[("authorization", f"Bearer {token}")],
                    )
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                        return False
                    raise
            return True

        assert works(alice)
        bob = add_token(file, "bob")
        revoke_token(file, "alice")
        assert works(alice) and not works(bob)
        running.process.send_signal(signal.SIGHUP)
        assert running.said("reloaded tokens and certificates")
        assert works(bob) and not works(alice)
        file.write_text("nonsense\n")
        running.process.send_signal(signal.SIGHUP)
        assert running.said("what was in force stays")
        assert works(bob)
        log = running.log.read_text()
    assert alice not in log and bob not in log


def test_spans_of_rounds_reach_a_receiver(tmp_path: Path):
    received: list[str] = []

    class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            received.extend(
                span.name
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            )
            return trace_service_pb2.ExportTraceServiceResponse()

    receiver = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Receiver(), receiver)
    port = receiver.add_insecure_port("127.0.0.1:0")
    receiver.start()
    options = ("--otel-endpoint", f"http://127.0.0.1:{port}")
    with verifier_process(tmp_path / "log", *options) as running:
        for stub in stub_at(running.address):
            one_round(stub)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(10) == 0
    receiver.stop(None).wait()
    assert sorted(received) == ["examine", "forward", "queue", "round"]


def test_without_traces_their_library_is_not_loaded():
    code = "import cloud_verifier.serve, sys; print('opentelemetry' in sys.modules)"
    assert run_python(code).stdout.strip() == "False"


def test_insecure_is_one_visible_line(tmp_path: Path):
    options = ("--listen", "0.0.0.0:0", "--insecure")
    with verifier_process(tmp_path / "log", *options) as running:
        lines = [line for line in running.log.read_text().splitlines() if "WARNING" in line]
    assert len(lines) == 1 and "nothing is encrypted and anyone may use it" in lines[0]


# ------------------------------------------------------------------------ refusals


def test_wrong_settings_exit_with_2(tmp_path: Path):
    common = ("serve", "--model", "none.gguf")
    for done, message in (
        (command("serve"), "no model is set"),
        (command(*common, "--gamma", "0"), "--gamma is '0'; it must be"),
        (command(*common, SPECWIRE_GAMA="4"), "did you mean SPECWIRE_GAMMA"),
        (command(*common, "--listen", "0.0.0.0:0"), "set --insecure"),
    ):
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_quantization_reaches_the_model(tmp_path: Path):
    """As far as the package that does it, where that is not installed."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(40)}, unk_token="w0")
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=40, num_attention_heads=2, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    serve = ("serve", "--model", str(tmp_path), "--listen", "127.0.0.1:0", "--device", "cpu")
    if find_spec("optimum") is None:
        done = command(*serve, "--quantization", "quanto-int8")
        assert done.returncode == 1 and "optimum-quanto" in done.stderr, done.stderr
        assert "install it, then try again" in done.stderr and "Traceback" not in done.stderr
    done = command(*serve, "--quantization", "int3")
    assert done.returncode == 2
    assert "one of bnb-int8, bnb-nf4, quanto-int8, quanto-int4, or none" in done.stderr


def test_files_that_cannot_be_used_exit_with_1_before_the_model_is_loaded(tmp_path: Path):
    authority = Authority(tmp_path)
    old = authority.issue("old", begins=-3, ends=-1)
    common = ("serve", "--model", "none.gguf")
    done = command(*common, "--tls-cert", str(old.cert), "--tls-key", str(old.key))
    assert done.returncode == 1 and "has expired; renew it" in done.stderr
    done = command(*common, "--tokens", str(tmp_path / "absent"))
    assert done.returncode == 1 and "can't read the token file" in done.stderr


def test_the_token_command(tmp_path: Path):
    file = str(tmp_path / "tokens")
    made = command("token", "new", "--name", "alice", "--file", file)
    token = made.stdout.strip()
    assert made.returncode == 0 and token.startswith("sw_") and token not in made.stderr
    assert token not in Path(file).read_text()
    again = command("token", "new", "--name", "alice", SPECWIRE_TOKENS=file)
    assert again.returncode == 1 and "has a token already" in again.stderr and not again.stdout
    assert command("token", "list", "--file", file).stdout == "alice\n"
    assert command("token", "revoke", "--name", "alice", "--file", file).returncode == 0
    assert command("token", "list", "--file", file).stdout == ""
    assert command("token", "list").returncode == 2


def test_the_token_command_loads_nothing_heavy():
    code = (
        "import sys, cloud_verifier.cli\n"
        "print([m for m in ('torch', 'transformers', 'prometheus_client')"
        " if m in sys.modules])"
    )
    assert run_python(code).stdout.strip() == "[]"
