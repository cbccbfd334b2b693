"""Limits that a verifier announces at the handshake and holds every client to."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from specwire.v1 import verifier_pb2 as pb

PROTOCOL_VERSIONS = (1,)


@dataclass(frozen=True)
class Limits:
    """Field by field as in the protocol's `Limits` message."""

    context: int
    gamma: int = 32
    chain: int = 256
    message_bytes: int = 16 << 20
    sessions: int = 256
    idle_s: float = 300.0
    stops: int = 16
    stop_bytes: int = 256
    logprobs: int = 20
    max_tokens: int = 1 << 20
    sessions_per_client: int = 0
    prompt: int = 0
    requests_per_s: float = 0.0

    def to_proto(self) -> pb.Limits:
        """The message that says the same."""
        return pb.Limits(**asdict(self))

    @classmethod
    def from_proto(cls, message: pb.Limits) -> Limits:
        """Read the message."""
        return cls(**{name: getattr(message, name) for name in cls.__dataclass_fields__})
