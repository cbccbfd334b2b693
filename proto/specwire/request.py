"""What a session was opened to do: an `Open` frame, checked and in plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from specwire.errors import (
    BadRequest,
    VersionMismatch,
    VocabularyMismatch,
)
from specwire.limits import PROTOCOL_VERSIONS, Limits
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

T = TypeVar("T", bound=int)


@dataclass(frozen=True)
class SessionRequest:
    """Everything that decides a session's output, and how it is paced.

    prompt, committed: token ids; `committed` was output elsewhere already.
    max_tokens: of output, `committed` included.
    logprobs: None for none, else how many top logprobs beside each token's own.
    """

    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stops: tuple[str, ...] = ()
    mode: pb.VerificationMode = pb.VERIFICATION_MODE_REJECTION
    pacing: pb.Pacing = pb.PACING_WAIT
    logprobs: int | None = None
    committed: tuple[int, ...] = ()
    return_text: bool = False


def check_version(version: int) -> None:
    """Raise `VersionMismatch` unless this software speaks the protocol version."""
    if version not in PROTOCOL_VERSIONS:
        known = ", ".join(map(str, PROTOCOL_VERSIONS))
        raise VersionMismatch(
            f"the client speaks protocol version {version or 'none'}, this verifier "
            f"version {known}; install matching releases of specwire at both ends",
            versions=PROTOCOL_VERSIONS,
        )


def read_open(
    frame: pb.Open, prompt: list[int], *, seed: int, vocabulary: Vocabulary, limits: Limits
) -> SessionRequest:
    """Check an `Open` frame against vocabulary and limits.

    `prompt` is its prompt as ids (the caller tokenizes text), `seed` is used
    if the frame brings none.

    Raises:
        VersionMismatch, VocabularyMismatch: the ends don't fit.
        BadRequest: a field is wrong or beyond a limit.
    """
    check_version(frame.protocol_version)
    _check_fingerprint(frame.vocabulary_fingerprint, vocabulary)
    # Lengths first: checking millions of ids would keep everyone else waiting.
    _check_room(len(prompt), len(frame.committed.ids), frame.max_tokens, limits)
    committed = tuple(frame.committed.ids)
    vocabulary.check_ids(prompt, "prompt")
    vocabulary.check_ids(committed, "committed")
    room = limits.context - len(prompt)
    return SessionRequest(
        prompt=tuple(prompt),
        seed=frame.seed if frame.HasField("seed") else seed,
        max_tokens=min(frame.max_tokens or room, room),
        sampling=SamplingParams.from_proto(frame.sampling),
        stops=_read_stops(frame, limits),
        mode=_choice(
            frame.mode,
            (pb.VERIFICATION_MODE_REJECTION, pb.VERIFICATION_MODE_COUPLED),
            "mode",
        ),
        pacing=_choice(frame.pacing, (pb.PACING_WAIT, pb.PACING_RUN_AHEAD), "pacing"),
        logprobs=_read_logprobs(frame, limits),
        committed=committed,
        return_text=frame.return_text,
    )


def _check_fingerprint(fingerprint: bytes, vocabulary: Vocabulary) -> None:
    if fingerprint and fingerprint != vocabulary.fingerprint:
        raise VocabularyMismatch(
            f"draft and target have different vocabularies: fingerprint "
            f"{fingerprint.hex()[:16]}… against the target's {vocabulary.fingerprint.hex()[:16]}… "
            f"of {len(vocabulary)} tokens; use a draft model of the target's family"
        )


def _check_room(prompt: int, committed: int, max_tokens: int, limits: Limits) -> None:
    if prompt == 0:
        raise BadRequest("the prompt is empty; send at least one token")
    if prompt >= limits.context:
        raise BadRequest(
            f"the prompt has {prompt} tokens, but the context holds {limits.context}, "
            f"which must include at least one token of output; shorten the prompt"
        )
    if limits.prompt and prompt > limits.prompt:
        raise BadRequest(
            f"the prompt has {prompt} tokens; this verifier takes {limits.prompt}; shorten it"
        )
    if prompt + committed > limits.context:
        raise BadRequest(
            f"prompt and committed tokens are {prompt + committed}, "
            f"but the context holds {limits.context}"
        )
    if max_tokens > limits.max_tokens:
        raise BadRequest(f"max_tokens is {max_tokens}; the limit is {limits.max_tokens}")
    if max_tokens and committed > max_tokens:
        raise BadRequest(
            f"{committed} tokens are committed already, more than max_tokens, {max_tokens}"
        )


def _read_stops(frame: pb.Open, limits: Limits) -> tuple[str, ...]:
    stops = tuple(frame.stops)
    if len(stops) > limits.stops:
        raise BadRequest(f"{len(stops)} stop strings; the limit is {limits.stops}")
    for stop in stops:
        if not stop:
            raise BadRequest("an empty stop string would stop at once; leave it out")
        if len(stop.encode()) > limits.stop_bytes:
            raise BadRequest(
                f"a stop string has {len(stop.encode())} bytes; the limit is {limits.stop_bytes}"
            )
    return stops


def _read_logprobs(frame: pb.Open, limits: Limits) -> int | None:
    if not frame.HasField("logprobs"):
        return None
    if frame.logprobs > limits.logprobs:
        raise BadRequest(f"logprobs is {frame.logprobs}; the limit is {limits.logprobs}")
    return frame.logprobs


def _choice(value: T, allowed: tuple[T, ...], what: str) -> T:
    # 0 is "unspecified" in every enum and means the first choice.
    if value == 0:
        return allowed[0]
    if value not in allowed:
        raise BadRequest(f"{what} {value} is unknown; known: {', '.join(map(str, allowed))}")
    return value
