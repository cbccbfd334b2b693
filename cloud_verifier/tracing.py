"""OpenTelemetry traces: one for each round, with its queue, forward and examination.

Only this file imports opentelemetry, and only if traces are asked for.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cloud_verifier.logs import session_tag
from cloud_verifier.observe import Round
from specwire import __version__
from specwire.errors import BadRequest, SpecwireError
from specwire.v1 import verifier_pb2 as pb

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


class Traces:
    """An `Observer` that makes a span of each round after it has ended, from its clock readings.

    So a round costs nothing more while it runs.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("specwire.cloud_verifier", __version__)

    def forward_ended(self, sessions: int, forward_s: float) -> None:
        """The rounds say it."""

    def round_ended(self, round: Round) -> None:
        """Make its spans."""
        from opentelemetry import trace

        verdict = round.verdict
        offset = time.time_ns() - int(time.perf_counter() * 1e9)
        ready, ended = (offset + int(at * 1e9) for at in (round.ready, round.ended))
        started = min(ready + verdict.queue_us * 1000, ended)
        examining = min(started + verdict.forward_us * 1000, ended)
        parent = self._tracer.start_span(
            "round",
            start_time=ready,
            attributes={
                "specwire.session": session_tag(round.session_id),
                "specwire.round": verdict.number,
                "specwire.examined": verdict.examined,
                "specwire.accepted": verdict.accepted,
                "specwire.kind": pb.TokenKind.Name(verdict.kind),
                "specwire.sessions": round.sessions,
            },
        )
        context = trace.set_span_in_context(parent)
        for name, begin, end in (
            ("queue", ready, started),
            ("forward", started, examining),
            ("examine", examining, ended),
        ):
            self._tracer.start_span(name, context, start_time=begin).end(end)
        parent.end(ended)

    def drafts_received(self, tokens: int) -> None:
        """The rounds say it."""

    def drafts_stale(self, tokens: int) -> None:
        """The metrics say it."""

    def refused(self, error: SpecwireError) -> None:
        """The metrics say it."""

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def traces_to(endpoint: str) -> Traces:
    """Traces sent to an OTLP/gRPC receiver, http:// in plain text or https://.

    Raises:
        BadRequest: the libraries for it are not installed.
    """
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        raise BadRequest(
            "otel_endpoint needs OpenTelemetry; install it with: pip install 'specwire[otel]'"
        )
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "cloud-verifier", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return Traces(provider)
