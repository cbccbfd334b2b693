"""The pure parts of the endpoint: requests, errors, log-probabilities, usage, settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge_client.openai_api.chat_request import read_chat_request
from edge_client.openai_api.completion_request import read_completion_request
from edge_client.openai_api.errors import ApiError, from_specwire
from edge_client.openai_api.fields import parse_object
from edge_client.openai_api.guard import host_name
from edge_client.openai_api.logprobs import (
    LOWEST,
    LogprobTrail,
    TokenNames,
    chat_logprobs,
    completion_logprobs,
)
from edge_client.openai_api.responses import fingerprint, usage
from edge_client.openai_api.settings import ServeSettings, read_key, split_address
from edge_client.options import GenerateOptions, Mode
from edge_client.render import seldom
from edge_client.result import Result, Token, TokenLogprob
from specwire import errors
from specwire.committed import Origin
from specwire.draft_account import Counts
from specwire.limits import Limits
from specwire.text import TextStream
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

LIMITS = Limits(context=100)
BASE = GenerateOptions(mode=Mode.SYNC, gamma=3)
USER = {"role": "user", "content": "Hi"}


def chat(**values: Any) -> Any:
    return read_chat_request({"model": "m", "messages": [USER], **values}, BASE, LIMITS)


def completion(**values: Any) -> Any:
    return read_completion_request({"model": "m", "prompt": "Hi", **values}, BASE, LIMITS)


# ── requests ─────────────────────────────────────────────────────────────────────────


def test_how_to_draft_is_not_the_requests_to_say() -> None:
    options = chat(temperature=0.5, stop="x").options
    assert (options.mode, options.gamma) == (Mode.SYNC, 3)
    assert (options.sampling.temperature, options.stops) == (0.5, ("x",))
    assert chat().options.sampling.temperature == completion().options.sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("values", "tokens"),
    [
        ({}, 100),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": 9, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 1000}, 100),
    ],
)
def test_the_length_of_chats(values: dict[str, Any], tokens: int) -> None:
    assert chat(**values).options.max_tokens == tokens


def test_the_length_of_completions() -> None:
    assert completion().options.max_tokens == 16
    assert completion(max_tokens=1000).options.max_tokens == 100


def test_no_mass_at_all_is_greedy() -> None:
    assert chat(top_p=0, temperature=2).options.sampling.greedy
    assert chat(top_p=0.1).options.sampling.top_p == 0.1


def test_seeds_count_up_and_wrap() -> None:
    request = chat(n=3, seed=-2)
    assert [request.options_of(i).seed for i in range(3)] == [2**64 - 2, 2**64 - 1, 0]
    assert [chat(n=2).options_of(i).seed for i in range(2)] == [None, None]


def test_logprobs_are_asked_for_in_two_ways() -> None:
    for values, wanted in (
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 4}, 4),
    ):
        assert chat(**values).options.logprobs == wanted
    for number in (None, 0, 3):
        assert completion(logprobs=number).options.logprobs == number


def test_only_the_first_unknown_parameter_is_told() -> None:
    with pytest.raises(ApiError) as caught:
        chat(zeta=1)
    assert caught.value.message == "Unrecognized request argument supplied: zeta"
    assert (caught.value.status, caught.value.param) == (400, "zeta")


@pytest.mark.parametrize("body", [b'{"a":1}', b'\xef\xbb\xbf{"a":1}', '{"a":1}'.encode("utf-16")])
def test_json_in_any_of_its_encodings(body: bytes) -> None:
    assert parse_object(body) == {"a": 1}


# ── errors ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.BadRequest("wrong"), 400, "invalid_value"),
        (errors.Exhausted("full"), 429, "verifier_exhausted"),
        (errors.Draining("stops"), 503, "verifier_draining"),
        (errors.LinkError("gone"), 502, "verifier_unreachable"),
        (errors.Unauthenticated("no token"), 502, "verifier_refused"),
        (errors.Untrusted("no certificate"), 502, "verifier_refused"),
        (errors.TargetFault("NaN"), 502, "verifier_failed"),
        (errors.ProtocolError("odd"), 502, "verifier_failed"),
    ],
)
def test_errors_of_the_verifier(error: errors.SpecwireError, status: int, code: str) -> None:
    answer = from_specwire(error, "prompt")
    assert (answer.status, answer.code, answer.message) == (status, code, str(error))
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert json.dumps(answer.body())


# ── log-probabilities ────────────────────────────────────────────────────────────────

PIECES = (b"", b"a", b"b", "é".encode()[:1], "é".encode()[1:], b"stop", b"st")
NAMES = TokenNames(Vocabulary(["<end>", *"abcdef"], PIECES, frozenset({0})), frozenset({0}))


def trail(
    ids: list[int], stops: tuple[str, ...] = (), names: TokenNames = NAMES
) -> list[tuple[str, list[int]]]:
    """What comes out with each token and at the end: text, and offsets of its entries."""
    stream, trail = TextStream(stops), LogprobTrail(names)
    told = []
    for position, id_ in enumerate(ids):
        text = stream.feed(PIECES[id_])
        logprob = TokenLogprob(-1.0, ((1, -1.0),))
        token = Token(id_, text, Origin.BONUS, position, logprob, PIECES[id_])
        told.append((text, [entry.offset for entry in trail.add(token)]))
    if rest := stream.finish():
        entries = trail.add(Token(None, rest, Origin.BONUS, len(ids)))
        told.append((rest, [entry.offset for entry in entries]))
    told.append(("", [e.offset for e in trail.finish(by_stop_string=stream.stopped)]))
    return told


NAMELESS = TokenNames(None, frozenset({0}))


@pytest.mark.parametrize("names", [NAMES, NAMELESS], ids=["vocabulary", "none"])
def test_entries_come_with_their_text(names: TokenNames) -> None:
    assert trail([1, 2, 0], (), names) == [("a", [0]), ("b", [1]), ("", []), ("", [])]
    whole = [("a", [0]), ("", []), ("é", [1, 1]), ("b", [2]), ("", [])]
    assert trail([1, 3, 4, 2], (), names) == whole
    # Half a character that does not go on.
    assert trail([3, 1], (), names) == [("", []), ("\ufffda", [0, 1]), ("", [])]
    assert trail([1, 3], (), names) == [("a", [0]), ("", []), ("\ufffd", [1]), ("", [])]


@pytest.mark.parametrize("names", [NAMES, NAMELESS], ids=["vocabulary", "none"])
def test_entries_inside_a_stop_are_dropped(names: TokenNames) -> None:
    assert trail([1, 5], ("stop",), names) == [("a", [0]), ("", []), ("", [])]
    assert trail([6, 2, 5], ("stop",), names) == [("", []), ("stb", [0, 2]), ("", []), ("", [])]
    assert trail([1, 6], ("stop",), names) == [("a", [0]), ("", []), ("st", [1]), ("", [])]


def test_tokens_whose_text_comes_together_come_together() -> None:
    trail = LogprobTrail(NAMELESS)
    logprob = TokenLogprob(-1.0, ())
    offsets = []
    for text, piece in (("so ", b"so "), ("", b""), ("it", b"it"), ("!", b"!")):
        entries = trail.add(Token(1, text, Origin.ACCEPTED, 0, logprob, piece))
        offsets.append([entry.offset for entry in entries])
    assert offsets == [[0], [], [3, 3], [5]]


def test_both_shapes_of_entries() -> None:
    trail = LogprobTrail(NAMES)
    top = ((1, -0.5), (3, float("-inf")), (0, -2.0))
    entries = trail.add(Token(1, "a", Origin.BONUS, 0, TokenLogprob(-0.5, top), b"a"))
    shape: Any = chat_logprobs(entries)
    (content,) = shape["content"]
    assert (content["token"], content["logprob"], content["bytes"]) == ("a", -0.5, [97])
    assert [item["bytes"] for item in content["top_logprobs"]] == [[97], [0xC3], None]
    assert completion_logprobs(entries) == {
        "tokens": ["a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"a": -0.5, "bytes:\\xc3": LOWEST, "<end>": -2.0}],
        "text_offset": [0],
    }
    assert "Infinity" not in json.dumps([chat_logprobs(entries), completion_logprobs(entries)])


def test_without_a_vocabulary_tokens_are_called_by_their_ids() -> None:
    trail = LogprobTrail(TokenNames(None, frozenset()))
    logprob = TokenLogprob(-1.0, ((9, -0.5),))
    assert trail.add(Token(7, "", Origin.RUN_AHEAD, 0, logprob, b"\xc3")) == []
    entries = trail.add(Token(8, "é", Origin.RUN_AHEAD, 1, logprob, b"\xa9"))
    assert [entry.own.token for entry in entries] == ["token_id:7", "token_id:8"]
    assert entries[0].top[0].token == "token_id:9" and entries[0].own.raw is None


# ── usage, fingerprint ───────────────────────────────────────────────────────────────


def test_usage_counts_each_prompt_once() -> None:
    def result(prompt: int, cached: int, output: int, examined: int, accepted: int) -> Result:
        return Result(
            prompt_tokens=prompt,
            cached_prompt_tokens=cached,
            token_ids=[1] * output,
            counts=Counts(examined=examined, accepted=accepted),
        )

    results = [result(10, 0, 5, 4, 3), result(10, 8, 6, 0, 0), *[result(20, 16, 7, 9, 9)] * 2]
    told = usage(results, 2)
    assert (told["prompt_tokens"], told["completion_tokens"], told["total_tokens"]) == (30, 25, 55)
    assert told["prompt_tokens_details"]["cached_tokens"] == 16
    details = told["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 21
    assert details["rejected_prediction_tokens"] == 1


def test_the_fingerprint_tells_models_apart() -> None:
    one = pb.DescribeResponse(model="a", server_version="1")
    assert fingerprint(one) == fingerprint(pb.DescribeResponse(model="a", server_version="1"))
    assert fingerprint(one) != fingerprint(pb.DescribeResponse(model="b", server_version="1"))
    assert fingerprint(one).startswith("fp_")


# ── settings ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:8010", ("127.0.0.1", 8010)), ("[::1]:0", ("::1", 0)), ("host:1", ("host", 1))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
    assert ServeSettings(*address, insecure=True).address == text


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:x", "::1:5", "host:65536", "h:²"]
)
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(errors.BadRequest, match="HOST:PORT"):
        split_address(text)


def test_other_machines_are_let_in_only_with_a_key() -> None:
    assert ServeSettings("127.0.0.1", 1).warning is None
    assert ServeSettings("::1", 1).warning is None
    with pytest.raises(errors.BadRequest, match=r"0\.0\.0\.0:1 can be reached"):
        ServeSettings("0.0.0.0", 1)
    settings = ServeSettings("0.0.0.0", 1, key="hidden")
    assert "plain text" in (settings.warning or "") and "hidden" not in repr(settings)


def test_a_file_wins_over_the_variable(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" of-the-file\n")
    assert read_key(tmp_path / "key", {"SPECWIRE_API_KEY": "other"}) == "of-the-file"
    assert read_key(None, {"SPECWIRE_API_KEY": "other"}) == "other"
    assert read_key(None, {"SPECWIRE_API_KEY": ""}) is None


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Host:1", "host"),
        ("host.", "host"),
        ("[::1]:5", "::1"),
        ("", ""),
        ("localhost:80@evil", ""),
    ],
)
def test_names_in_host_headers(header: str, name: str) -> None:
    assert host_name(header) == name


def test_the_same_notice_is_given_once() -> None:
    told: list[str] = []
    tell = seldom(told.append)
    for line in ("a", "b", "a", "a"):
        tell(line)
    assert told == ["a", "b"]
    always: list[str] = []
    tell = seldom(always.append, pause_s=-1.0)
    tell("a")
    tell("a")
    assert always == ["a", "a"]
