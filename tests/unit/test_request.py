"""Opening a session: every wrong field is refused with its value."""

from __future__ import annotations

from typing import Any

import pytest

from specwire.errors import BadRequest, VersionMismatch, VocabularyMismatch
from specwire.limits import PROTOCOL_VERSIONS, Limits
from specwire.request import SessionRequest, check_version, read_open
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from tests.support.tables import table_vocabulary

VOCABULARY = table_vocabulary(5, frozenset({4}))
LIMITS = Limits(context=10, max_tokens=100, stops=2, stop_bytes=5, logprobs=3)


def read(prompt: list[int] | None = None, **fields: Any) -> SessionRequest:
    fields.setdefault("protocol_version", 1)
    return read_open(
        pb.Open(**fields),
        [0, 1] if prompt is None else prompt,
        seed=77,
        vocabulary=VOCABULARY,
        limits=LIMITS,
    )


def test_what_is_absent_has_its_default() -> None:
    assert read() == SessionRequest(
        prompt=(0, 1),
        seed=77,
        max_tokens=8,
        sampling=SamplingParams(),
        stops=(),
        mode=pb.VERIFICATION_MODE_REJECTION,
        pacing=pb.PACING_WAIT,
        logprobs=None,
        committed=(),
        return_text=False,
    )


def test_what_is_present_is_taken() -> None:
    request = read(
        seed=0,
        max_tokens=3,
        sampling=pb.Sampling(temperature=0.5),
        stops=["a", "bc"],
        mode=pb.VERIFICATION_MODE_COUPLED,
        pacing=pb.PACING_RUN_AHEAD,
        logprobs=0,
        committed=pb.TokenIds(ids=[2]),
        return_text=True,
        vocabulary_fingerprint=VOCABULARY.fingerprint,
    )
    assert request == SessionRequest(
        prompt=(0, 1),
        seed=0,
        max_tokens=3,
        sampling=SamplingParams(temperature=0.5),
        stops=("a", "bc"),
        mode=pb.VERIFICATION_MODE_COUPLED,
        pacing=pb.PACING_RUN_AHEAD,
        logprobs=0,
        committed=(2,),
        return_text=True,
    )


@pytest.mark.parametrize(("asked", "given"), [(0, 8), (1, 1), (8, 8), (9, 8), (100, 8)])
def test_k6_output_ends_where_the_context_does(asked: int, given: int) -> None:
    assert read(max_tokens=asked).max_tokens == given


@pytest.mark.parametrize(("length", "room"), [(1, 9), (9, 1)])
def test_k6_prompts_at_the_edge_of_the_context(length: int, room: int) -> None:
    assert read([0] * length).max_tokens == room


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [
        ([], {}, "prompt is empty"),
        ([0] * 10, {}, "10 tokens, but the context holds 10"),
        ([0] * 11, {}, "11 tokens, but the context holds 10"),
        ([0, 5], {}, "prompt: token id 5 at index 1"),
        ([0], {"committed": pb.TokenIds(ids=[9])}, "committed: token id 9"),
        ([0] * 5, {"committed": pb.TokenIds(ids=[0] * 6)}, "are 11, but the context holds 10"),
        ([0], {"max_tokens": 101}, "max_tokens is 101; the limit is 100"),
        (
            [0],
            {"max_tokens": 2, "committed": pb.TokenIds(ids=[0] * 3)},
            "3 tokens .* max_tokens, 2",
        ),
        ([0], {"stops": ["a", "b", "c"]}, "3 stop strings; the limit is 2"),
        ([0], {"stops": [""]}, "empty stop string"),
        ([0], {"stops": ["ééé"]}, "has 6 bytes; the limit is 5"),
        ([0], {"logprobs": 4}, "logprobs is 4; the limit is 3"),
        ([0], {"mode": 9}, "mode 9 is unknown"),
        ([0], {"pacing": 9}, "pacing 9 is unknown"),
        ([0], {"sampling": pb.Sampling(temperature=-1)}, r"temperature .* -1\.0"),
        ([0], {"sampling": pb.Sampling(top_p=0)}, r"top_p .* 0\.0"),
        ([0], {"sampling": pb.Sampling(min_p=float("nan"))}, "min_p .* nan"),
    ],
    ids=str,
)
def test_wrong_fields_are_refused_with_their_value(
    prompt: list[int], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        read(prompt, **fields)


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_d4_other_versions_are_refused_with_both_numbers(version: int) -> None:
    for attempt in (lambda: check_version(version), lambda: read(protocol_version=version)):
        with pytest.raises(VersionMismatch) as caught:
            attempt()
        assert f"version {version or 'none'}," in str(caught.value)
        assert "version 1;" in str(caught.value)
        assert caught.value.versions == PROTOCOL_VERSIONS == (1,)


def test_d4_the_version_is_looked_at_first() -> None:
    """A peer of another version must not be told that its fields are wrong."""
    with pytest.raises(VersionMismatch):
        read([], protocol_version=2, max_tokens=1000)


def test_d4_fields_that_are_unknown_are_ignored() -> None:
    raw = pb.Open(protocol_version=1).SerializeToString() + b"\xfa\x7f\x03abc"
    frame = pb.Open.FromString(raw)
    assert read_open(frame, [0], seed=1, vocabulary=VOCABULARY, limits=LIMITS).prompt == (0,)


def test_v2_another_vocabulary_is_refused() -> None:
    other = table_vocabulary(6)
    with pytest.raises(VocabularyMismatch) as caught:
        read(vocabulary_fingerprint=other.fingerprint)
    assert other.fingerprint.hex()[:16] in str(caught.value)
    assert VOCABULARY.fingerprint.hex()[:16] in str(caught.value)


def test_limits_travel() -> None:
    message = pb.Limits.FromString(LIMITS.to_proto().SerializeToString())
    assert Limits.from_proto(message) == LIMITS
