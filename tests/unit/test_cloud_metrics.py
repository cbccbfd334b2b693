"""What is counted, logged and traced of a round."""

from __future__ import annotations

import io
import json
import logging
import urllib.request
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cloud_verifier import logs
from cloud_verifier.backends.blocks import BlockPool
from cloud_verifier.metrics import Metrics, MetricsEndpoint
from cloud_verifier.observe import SILENT, Observer, Round, all_of
from cloud_verifier.tracing import Traces
from specwire.errors import BadRequest, Exhausted, SpecwireError, Unauthenticated
from specwire.v1 import verifier_pb2 as pb

SESSION = bytes(range(0xA0, 0xB0))


def a_round(
    number: int = 1,
    *,
    examined: int = 3,
    accepted: int = 2,
    kind: pb.TokenKind = pb.TOKEN_KIND_CORRECTION,
    token: int | None = 5,
) -> Round:
    verdict = pb.Verdict(
        number=number,
        examined=examined,
        accepted=accepted,
        kind=kind,
        token=token,
        queue_us=2_000,
        forward_us=30_000,
    )
    return Round(SESSION, verdict, ready=10.0, ended=10.04, sessions=3)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(name, labels)
    assert found is not None, f"no sample {name} {labels}"
    return found


def test_tokens_are_counted_by_author(metrics: Metrics):
    metrics.round_ended(a_round())
    metrics.round_ended(a_round(accepted=3, kind=pb.TOKEN_KIND_BONUS))
    metrics.round_ended(a_round(accepted=3, kind=pb.TOKEN_KIND_UNSPECIFIED, token=None))
    metrics.round_ended(a_round(examined=0, accepted=0, kind=pb.TOKEN_KIND_RUN_AHEAD))
    kinds = ("accepted", "correction", "bonus", "run-ahead")
    assert [value(metrics, "specwire_tokens_total", kind=k) for k in kinds] == [8, 1, 1, 1]
    assert value(metrics, "specwire_rounds_total") == 4


def test_acceptance_is_counted_by_position_up_to_a_cap(metrics: Metrics):
    metrics.round_ended(a_round(examined=3, accepted=2))
    metrics.round_ended(a_round(examined=20, accepted=20, kind=pb.TOKEN_KIND_BONUS))

    def at(kind: str, position: str) -> float:
        return value(metrics, f"specwire_draft_{kind}_total", position=position)

    assert [at("examined", str(i)) for i in (1, 2, 3, 4)] == [2, 2, 2, 1]
    assert [at("accepted", str(i)) for i in (1, 2, 3, 4)] == [2, 2, 1, 1]
    assert (at("examined", "16+"), at("accepted", "16+")) == (5, 5)


def test_times_and_batches_have_histograms(metrics: Metrics):
    metrics.round_ended(a_round())
    metrics.round_ended(a_round())
    metrics.forward_ended(3, 0.03)
    assert value(metrics, "specwire_queue_seconds_sum") == pytest.approx(0.004)
    assert value(metrics, "specwire_forward_seconds_sum") == pytest.approx(0.03)
    assert value(metrics, "specwire_forward_seconds_count") == 1  # both rounds were in it
    assert value(metrics, "specwire_round_seconds_sum") == pytest.approx(0.08)
    assert value(metrics, "specwire_batch_sessions_bucket", le="2.0") == 0
    assert value(metrics, "specwire_batch_sessions_bucket", le="4.0") == 1


def test_drafts_and_refusals_are_counted(metrics: Metrics):
    metrics.drafts_received(7)
    metrics.drafts_stale(3)
    metrics.refused(Exhausted("full"))
    metrics.refused(Unauthenticated("who?"))
    metrics.refused(SpecwireError("a fault of ours"))
    assert value(metrics, "specwire_draft_received_total") == 7
    assert value(metrics, "specwire_draft_stale_total") == 3
    assert value(metrics, "specwire_refused_total", code="exhausted") == 1
    assert value(metrics, "specwire_refused_total", code="unauthenticated") == 1
    assert value(metrics, "specwire_refused_total", code="internal") == 1
    assert value(metrics, "specwire_auth_failures_total") == 1


def test_sessions_and_blocks_are_read_when_asked(metrics: Metrics):
    pool = BlockPool(count=10, size=4)
    sessions = [5, 2]
    metrics.watch_sessions(lambda: sessions[0], lambda: sessions[1])
    metrics.watch_blocks(pool)
    table = pool.adopt([], 0)
    pool.write(table, list(range(9)))
    blocks = [value(metrics, "specwire_kv_blocks", state=s) for s in ("used", "kept", "free")]
    assert blocks == [3, 0, 7]
    pool.publish(table)
    pool.release(table)
    blocks = [value(metrics, "specwire_kv_blocks", state=s) for s in ("used", "kept", "free")]
    assert blocks == [0, 2, 8]
    assert value(metrics, "specwire_sessions", state="attached") == 2
    assert value(metrics, "specwire_sessions", state="detached") == 3


def test_the_endpoint_serves_them_and_lets_its_port_go(metrics: Metrics):
    metrics.describe("a model")
    endpoint = MetricsEndpoint("127.0.0.1:0", metrics)
    with urllib.request.urlopen(f"http://{endpoint.address}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert 'specwire_verifier_info{model="a model"' in text
    with pytest.raises(BadRequest, match="can't serve metrics on"):
        MetricsEndpoint(endpoint.address, metrics)
    endpoint.close()
    MetricsEndpoint(endpoint.address, metrics).close()


def test_two_verifiers_in_a_process_count_apart():
    one, other = Metrics(), Metrics()
    one.forward_ended(1, 0.1)
    assert value(other, "specwire_batch_sessions_count") == 0


# ---------------------------------------------------------------------------- logs


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield root
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)


def test_json_records_carry_session_and_round(root_logger: logging.Logger):
    stream = io.StringIO()
    logs.configure("json", logging.DEBUG, stream)
    logs.RoundLog().round_ended(a_round(7))
    logs.RoundLog().refused(Exhausted("you said: my secret"))
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["session"] == SESSION.hex()[:8]
    assert (first["round"], first["examined"], first["level"]) == (7, 3, "debug")
    assert second["code"] == "Exhausted"
    assert SESSION.hex() not in stream.getvalue() and "secret" not in stream.getvalue()


def test_text_records_stay_on_their_line(root_logger: logging.Logger):
    stream = io.StringIO()
    logs.configure("text", logging.INFO, stream)
    logging.getLogger("x").info("a\nb", extra=logs.about(SESSION))
    logging.getLogger("x").debug("hidden")
    assert stream.getvalue().endswith(f"Z INFO x: a\\nb session={SESSION.hex()[:8]}\n")
    assert stream.getvalue().count("\n") == 1


def test_a_notice_is_told_at_any_level_in_the_logs_format(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
):
    logs.configure("text", logging.ERROR, io.StringIO())
    logs.notice("one\ntwo")
    logs.notice("careful", level=logging.WARNING)
    assert capsys.readouterr().err == "one\ntwo\nWARNING: careful\n"
    logs.configure("json", logging.ERROR, io.StringIO())
    logs.notice("one\ntwo")
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(r["level"], r["message"]) for r in records] == [("info", "one"), ("info", "two")]


def test_a_traceback_is_kept(root_logger: logging.Logger):
    stream = io.StringIO()
    logs.configure("json", logging.INFO, stream)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "ValueError: why" in json.loads(stream.getvalue())["exception"]


# -------------------------------------------------------------------------- traces


def test_a_round_is_a_span_with_three_parts():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces(provider)
    traces.round_ended(a_round(4))
    traces.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"round", "queue", "forward", "examine"}

    def length(name: str) -> float:
        start, end = spans[name].start_time, spans[name].end_time
        assert start is not None and end is not None
        return (end - start) / 1e9

    assert length("round") == pytest.approx(0.04, abs=1e-6)
    assert length("queue") == pytest.approx(0.002, abs=1e-6)
    assert length("forward") == pytest.approx(0.03, abs=1e-6)
    assert length("examine") == pytest.approx(0.008, abs=1e-6)
    parent = spans["round"].context
    children = [spans[name].parent for name in ("queue", "forward", "examine")]
    assert parent is not None
    assert all(child is not None and child.span_id == parent.span_id for child in children)
    attributes = spans["round"].attributes
    assert attributes is not None
    assert attributes["specwire.round"] == 4
    assert attributes["specwire.session"] == SESSION.hex()[:8]


# ----------------------------------------------------------------------- observers


def test_several_observers_hear_everything():
    one, other = Metrics(), Metrics()
    both: Observer = all_of([one, other])
    both.forward_ended(1, 0.1)
    both.round_ended(a_round())
    both.drafts_received(1)
    both.drafts_stale(1)
    both.refused(Exhausted("full"))
    for metrics in (one, other):
        assert value(metrics, "specwire_rounds_total") == 1
        assert value(metrics, "specwire_draft_stale_total") == 1
        assert value(metrics, "specwire_refused_total", code="exhausted") == 1
    assert all_of([]) is SILENT and all_of([one]) is one
