"""Prometheus metrics of a verifier, and the HTTP endpoint that shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from cloud_verifier.observe import Round
from specwire import __version__
from specwire.errors import BadRequest, SpecwireError, Unauthenticated
from specwire.v1 import verifier_pb2 as pb

POSITIONS = 16
"""Draft positions counted one by one; later ones are counted together."""

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_KINDS = {
    pb.TOKEN_KIND_CORRECTION: "correction",
    pb.TOKEN_KIND_BONUS: "bonus",
    pb.TOKEN_KIND_RUN_AHEAD: "run-ahead",
}


class Blocks(Protocol):
    """Blocks of the memory for keys and values, counted."""

    @property
    def count(self) -> int:
        """All there are."""

    @property
    def used(self) -> int:
        """Those that a session holds."""

    @property
    def kept(self) -> int:
        """Those kept for a session that may come back."""


class Metrics:
    """An `Observer` that counts. Each has a registry of its own."""

    def __init__(self) -> None:
        # A sample more for each counter, of use to nobody here.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._rounds = Counter(
            "specwire_rounds", "Target forwards that gave a session a verdict", registry=registry
        )
        tokens = Counter(
            "specwire_tokens", "Tokens committed, by their author", ["kind"], registry=registry
        )
        self._accepted = tokens.labels("accepted")
        self._by_kind = {kind: tokens.labels(name) for kind, name in _KINDS.items()}
        self._received = Counter(
            "specwire_draft_received", "Draft tokens that came in proposals", registry=registry
        )
        self._stale = Counter(
            "specwire_draft_stale",
            "Draft tokens that will never be examined: too late, or on a dead chain",
            registry=registry,
        )
        self._examined_at = _by_position(
            "specwire_draft_examined", "Draft tokens examined, by place in their round", registry
        )
        self._accepted_at = _by_position(
            "specwire_draft_accepted", "Draft tokens accepted, by place in their round", registry
        )
        self._batch = Histogram(
            "specwire_batch_sessions",
            "Sessions that shared a target forward",
            buckets=BATCH,
            registry=registry,
        )
        self._queue_s, self._forward_s, self._round_s = (
            Histogram(name, text, buckets=SECONDS, registry=registry)
            for name, text in (
                ("specwire_queue_seconds", "From a round being ready to its forward's start"),
                ("specwire_forward_seconds", "A target forward, of rounds, prompts or both"),
                ("specwire_round_seconds", "From a round being ready to its verdict"),
            )
        )
        self._refused = Counter(
            "specwire_refused", "Calls that ended with an error", ["code"], registry=registry
        )
        self._unauthenticated = Counter(
            "specwire_auth_failures", "Calls without a valid token", registry=registry
        )
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    # ------------------------------------------------------------------ gauges

    def describe(self, model: str) -> None:
        """Say what is served."""
        info = Info("specwire_verifier", "What this verifier serves", registry=self.registry)
        info.info({"version": __version__, "model": model})

    def watch_sessions(self, kept: Callable[[], int], attached: Callable[[], int]) -> None:
        """Show how many sessions are kept, and how many of them have a client."""
        gauge = Gauge(
            "specwire_sessions",
            "Sessions kept, by whether a client is attached",
            ["state"],
            registry=self.registry,
        )
        gauge.labels("attached").set_function(lambda: attached())
        gauge.labels("detached").set_function(lambda: kept() - attached())

    def watch_blocks(self, blocks: Blocks) -> None:
        """Show the memory for keys and values."""
        gauge = Gauge(
            "specwire_kv_blocks", "Blocks of keys and values", ["state"], registry=self.registry
        )
        gauge.labels("used").set_function(lambda: blocks.used)
        gauge.labels("kept").set_function(lambda: blocks.kept)
        gauge.labels("free").set_function(lambda: blocks.count - blocks.used - blocks.kept)

    # ------------------------------------------------------------------ events

    def forward_ended(self, sessions: int, forward_s: float) -> None:
        """Count a batch, once for all who shared it."""
        self._batch.observe(sessions)
        self._forward_s.observe(forward_s)

    def round_ended(self, round: Round) -> None:
        """Count a verdict."""
        verdict = round.verdict
        self._rounds.inc()
        self._accepted.inc(verdict.accepted)
        if verdict.HasField("token") and verdict.kind in self._by_kind:
            self._by_kind[verdict.kind].inc()
        for index in range(verdict.examined):
            place = min(index, POSITIONS - 1)
            self._examined_at[place].inc()
            if index < verdict.accepted:
                self._accepted_at[place].inc()
        self._queue_s.observe(verdict.queue_us * 1e-6)
        self._round_s.observe(round.ended - round.ready)

    def drafts_received(self, tokens: int) -> None:
        """Count them."""
        self._received.inc(tokens)

    def drafts_stale(self, tokens: int) -> None:
        """Count them."""
        self._stale.inc(tokens)

    def refused(self, error: SpecwireError) -> None:
        """Count an error by its code; faults of the service itself have none."""
        name = pb.ErrorCode.Name(error.code).removeprefix("ERROR_CODE_").lower()
        if error.code == pb.ERROR_CODE_UNSPECIFIED:
            name = "internal"
        self._refused.labels(name).inc()
        if isinstance(error, Unauthenticated):
            self._unauthenticated.inc()


def _by_position(name: str, text: str, registry: CollectorRegistry) -> list[Counter]:
    counter = Counter(name, f"{text}, from 1", ["position"], registry=registry)
    labels = [*map(str, range(1, POSITIONS)), f"{POSITIONS}+"]
    return [counter.labels(label) for label in labels]


class MetricsEndpoint:
    """Serves `/metrics` over HTTP from a thread of its own, until closed."""

    def __init__(self, address: str, metrics: Metrics) -> None:
        """Listen on HOST:PORT.

        Raises:
            BadRequest: the address can't be used.
        """
        host, _, port = address.rpartition(":")
        try:
            self._server, self._thread = start_http_server(
                int(port), host.strip("[]"), metrics.registry
            )
        except OSError as error:
            raise BadRequest(
                f"can't serve metrics on {address}: {error.strerror or error}"
            ) from error
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
