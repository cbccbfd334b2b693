"""What a caller can ask for, how often is tried, and what a person sees at the end."""

from __future__ import annotations

import asyncio
import io
import math
import shlex
import time
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from edge_client import GenerateOptions, Mode, Result, Token, Verification, render
from edge_client.arguments import EXIT_CODES, options_from, parse
from edge_client.cli import main
from edge_client.generation import opening_frame
from edge_client.result import TokenLogprob
from edge_client.retry import RetryPolicy, retrying
from specwire.committed import Origin
from specwire.draft_account import Counts
from specwire.errors import (
    BadRequest,
    Draining,
    Exhausted,
    LinkError,
    SpecwireError,
    Unauthenticated,
)
from specwire.limits import Limits
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb

GREEDY = SamplingParams(temperature=0)

# ── options ──────────────────────────────────────────────────────────────────────────

LIMITS = Limits(context=256, gamma=32)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1 << 32),
        ("seed", -1),
        ("seed", 1 << 64),
        ("gamma", -1),
        ("gamma", 1 << 32),
        ("window", 0),
        ("window", 1 << 32),
        ("logprobs", -1),
        ("logprobs", 1 << 32),
        ("stops", "END"),
        ("stops", ("a", "")),
        ("stops", ("a", "\udcff")),
        ("mode", "fast"),
        ("verification", "exact"),
    ],
)
def test_values_out_of_range(field: str, value: Any) -> None:
    name = {"stops": "stop"}.get(field, field)
    with pytest.raises(BadRequest, match=name):
        GenerateOptions(**{field: value})


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.PIPELINE, Mode.RUN_AHEAD])
def test_a_window_that_holds_no_proposal(mode: Mode) -> None:
    with pytest.raises(BadRequest, match="window 3 holds no proposal of gamma 4"):
        GenerateOptions(mode=mode, gamma=4, window=3)
    assert GenerateOptions(mode=mode, gamma=3, window=3).window == 3
    assert GenerateOptions(gamma=4, window=3).window == 3  # the policy takes less


def test_values_at_the_limits() -> None:
    options = GenerateOptions(max_tokens=1, seed=(1 << 64) - 1, gamma=0, window=1, logprobs=0)
    assert options.seed == (1 << 64) - 1
    most = (1 << 32) - 1
    options = GenerateOptions(max_tokens=most, seed=0, gamma=most, window=most, logprobs=most)
    assert opening_frame(options, fingerprint=b"", return_text=False).logprobs == most
    with pytest.raises(FrozenInstanceError):
        options.gamma = 3  # type: ignore[misc]


def test_plain_strings_mean_their_members() -> None:
    options = GenerateOptions(mode="sync", verification="coupled")  # type: ignore[arg-type]
    assert options.mode is Mode.SYNC
    assert options.verification is Verification.COUPLED
    assert options.rule == pb.VERIFICATION_MODE_COUPLED


@pytest.mark.parametrize(
    ("mode", "pacing", "greedy_rule", "rule"),
    [
        (Mode.AUTO, pb.PACING_RUN_AHEAD, "REJECTION", "COUPLED"),
        (Mode.SYNC, pb.PACING_WAIT, "REJECTION", "REJECTION"),
        (Mode.PIPELINE, pb.PACING_WAIT, "REJECTION", "REJECTION"),
        (Mode.RUN_AHEAD, pb.PACING_RUN_AHEAD, "REJECTION", "COUPLED"),
        (Mode.STREAM, pb.PACING_RUN_AHEAD, "REJECTION", "COUPLED"),
    ],
)
def test_pacing_and_rule(mode: Mode, pacing: int, greedy_rule: str, rule: str) -> None:
    sampled, greedy = GenerateOptions(mode=mode), GenerateOptions(sampling=GREEDY, mode=mode)
    assert sampled.pacing == greedy.pacing == pacing
    assert pb.VerificationMode.Name(sampled.rule) == f"VERIFICATION_MODE_{rule}"
    assert pb.VerificationMode.Name(greedy.rule) == f"VERIFICATION_MODE_{greedy_rule}"
    for choice, name in ((Verification.COUPLED, "COUPLED"), (Verification.REJECTION, "REJECTION")):
        asked = GenerateOptions(mode=mode, verification=choice).rule
        assert pb.VerificationMode.Name(asked) == f"VERIFICATION_MODE_{name}"


def test_the_opening_says_what_was_asked() -> None:
    options = GenerateOptions(max_tokens=7, stops=("a", "b"), seed=0, logprobs=0, sampling=GREEDY)
    frame = opening_frame(options, fingerprint=b"f" * 32, return_text=True)
    assert (frame.max_tokens, list(frame.stops), frame.return_text) == (7, ["a", "b"], True)
    assert frame.HasField("seed") and frame.seed == 0
    assert frame.HasField("logprobs") and frame.logprobs == 0
    assert frame.vocabulary_fingerprint == b"f" * 32
    assert len(frame.open_key) == 16
    again = opening_frame(GenerateOptions(), fingerprint=b"", return_text=False)
    assert again.open_key != frame.open_key
    assert not again.HasField("seed") and not again.HasField("logprobs")


# ── arguments ────────────────────────────────────────────────────────────────────────


def test_arguments_become_options() -> None:
    line = (
        "generate hi --mode sync --verification coupled --gamma 3 --window 9 --temperature 0.5 "
        "--top-k 5 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1 --presence-penalty 0.2 "
        "--frequency-penalty 0.3 --seed 4 --max-tokens 6 --stop a --stop b --logprobs 2"
    )
    args = parse(shlex.split(line))
    options = options_from(args)
    assert options == GenerateOptions(
        sampling=SamplingParams(0.5, 5, 0.9, 0.1, 1.1, 0.2, 0.3),
        max_tokens=6,
        stops=("a", "b"),
        seed=4,
        mode=Mode.SYNC,
        verification=Verification.COUPLED,
        gamma=3,
        window=9,
        logprobs=2,
    )


def test_defaults_are_those_of_the_api_but_for_the_temperature() -> None:
    options = options_from(parse(["generate", "hi"]))
    assert options == GenerateOptions(sampling=SamplingParams(temperature=0.7))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "generate x --mode fast",
        "generate x --gamma many",
        "generate x y",
        "talk",
        "chat --json",
    ],
)
def test_wrong_arguments_exit_with_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(line.split())
    assert caught.value.code == 2
    assert "usage: edge-client" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--gamma", "-1"], "gamma"),
        (["--temperature", "-0.1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--max-tokens", "5000000000"], "max_tokens must be between 1 and 4294967295, not 5"),
        (["--logprobs", "5000000000"], "logprobs must be between 0 and 4294967295, not 5"),
        (["--top-k", "1" + 400 * "0"], "top_k"),
        (["--threads", "0"], "threads must be between 1 and 512, not 0"),
        (["--threads", "99999999999"], "threads"),
        (["--seed", "-1"], "seed"),
        (["--stop", ""], "stop"),
        (["--stop", "\udcff"], "give it in UTF-8"),
        (["--server", "nowhere"], "HOST:PORT"),
        (["--server", "\udcff:80"], "HOST:PORT"),
        (["--server", "localhost:²"], "HOST:PORT"),
    ],
)
def test_values_out_of_range_exit_with_2(
    extra: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "x", *extra]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("edge-client: ") and says in shown.err
    assert shown.err.count("\n") == 1


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["generate"], ["chat"]):
        with pytest.raises(SystemExit) as caught:
            parse([*command, "--help"])
        assert caught.value.code == 0
        assert EXIT_CODES.strip() in capsys.readouterr().out


# ── retrying ─────────────────────────────────────────────────────────────────────────

QUICK = RetryPolicy(attempts=3, total_s=5.0, first_s=0.01, longest_s=0.02)


class Attempts:
    """Fails as told, then succeeds."""

    def __init__(self, *failures: BaseException) -> None:
        self._failures = list(failures)
        self.count = 0
        self.waits: list[tuple[str, float]] = []

    async def attempt(self) -> str:
        self.count += 1
        if self._failures:
            raise self._failures.pop(0)
        return "done"

    def on_wait(self, error: BaseException, seconds: float) -> None:
        self.waits.append((str(error), seconds))


@pytest.mark.parametrize("failure", [LinkError("a"), Draining("a"), Exhausted("a")])
async def test_what_may_pass_is_tried_again(failure: SpecwireError) -> None:
    attempts = Attempts(failure, LinkError("b"))
    assert await retrying(QUICK, attempts.attempt, attempts.on_wait) == "done"
    assert attempts.count == 3
    assert [text for text, _ in attempts.waits] == ["a", "b"]
    assert all(0.0 < seconds <= 0.02 + 0.01 for _, seconds in attempts.waits)


async def test_attempts_are_bounded_and_the_last_failure_is_told() -> None:
    attempts = Attempts(*(LinkError(name) for name in "abcdef"))
    with pytest.raises(LinkError, match=r"^c$"):
        await retrying(QUICK, attempts.attempt, attempts.on_wait)
    assert attempts.count == 3 and len(attempts.waits) == 2


async def test_time_is_bounded() -> None:
    attempts = Attempts(*(LinkError("x") for _ in range(100)))
    policy = RetryPolicy(attempts=100, total_s=0.3, first_s=0.1, longest_s=0.1)
    began = time.perf_counter()
    with pytest.raises(LinkError):
        await retrying(policy, attempts.attempt, attempts.on_wait)
    assert time.perf_counter() - began < 0.6
    # Waits are of half to all of 0.1 s: at most six of them fit, and an attempt after each.
    assert 2 <= attempts.count <= 7


@pytest.mark.parametrize(
    "failure", [BadRequest("no"), Unauthenticated("no"), SpecwireError("no"), ValueError("no")]
)
async def test_what_can_not_pass_is_final(failure: Exception) -> None:
    attempts = Attempts(failure)
    with pytest.raises(type(failure), match="no"):
        await retrying(QUICK, attempts.attempt, attempts.on_wait)
    assert attempts.count == 1 and attempts.waits == []


@pytest.mark.parametrize("interrupt", [asyncio.CancelledError(), KeyboardInterrupt()])
async def test_an_interrupt_is_not_tried_again(interrupt: BaseException) -> None:
    attempts = Attempts(interrupt)
    with pytest.raises(type(interrupt)):
        await retrying(QUICK, attempts.attempt, attempts.on_wait)
    assert attempts.count == 1


async def test_cancelling_during_a_wait_ends_it() -> None:
    attempts = Attempts(*(LinkError("x") for _ in range(100)))
    policy = RetryPolicy(attempts=100, total_s=100, first_s=10, longest_s=10)
    began = time.perf_counter()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(retrying(policy, attempts.attempt, attempts.on_wait), 0.1)
    assert time.perf_counter() - began < 1.0
    assert attempts.count == 1


# ── what a person sees ───────────────────────────────────────────────────────────────


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "env", "wanted"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_when_to_colour(stream: io.StringIO, env: dict[str, str], wanted: bool) -> None:
    assert render.wants_colour(stream, env) is wanted


def test_each_origin_has_its_colour() -> None:
    shown = io.StringIO()
    writer = render.TokenWriter(shown, colour=True, terminal=True)
    for position, origin in enumerate(Origin):
        writer.write(Token(1, "x", origin, position))
    writer.write(Token(None, "", Origin.BONUS, 9))  # nothing to see
    parts = shown.getvalue().split("x")
    assert len(set(parts[:-1])) == len(Origin)
    assert all("\x1b[" in part for part in parts)


def test_harmless_keeps_words_and_nothing_that_steers() -> None:
    assert render.harmless("a\tb\nc") == "a\tb\nc"
    steering = "x\x1b[2J\x1b]0;title\x07\r\x08y\x9b31m\x7f"
    assert render.harmless(steering) == "x[2J]0;titley31m"
    assert render.shown(steering, Terminal()) == "x[2J]0;titley31m"
    assert render.shown(steering, io.StringIO()) == steering


def test_the_line_is_ended_once() -> None:
    for texts, wanted in ((["a", "b"], "ab\n"), (["a\n"], "a\n"), ([], ""), ([""], "")):
        shown = io.StringIO()
        writer = render.TokenWriter(shown, colour=False, terminal=False)
        for text in texts:
            writer.write(Token(1, text, Origin.BONUS, 0))
        writer.end()
        writer.end()
        assert shown.getvalue() == wanted


def account() -> Result:
    counts = Counts()
    counts.add_round(4, 3)
    counts.add_round(4, 4)
    counts.proposals, counts.proposed = 2, 8
    return Result(
        text="words",
        token_ids=list(range(9)),
        finish_reason="stop",
        mode="sync",
        verification="rejection",
        model="target",
        draft="small",
        gamma=4,
        counts=counts,
        origins={Origin.ACCEPTED: 7, Origin.CORRECTION: 1, Origin.BONUS: 1},
        bytes_up=120,
        bytes_down=45,
        ttft_s=0.25,
        duration_s=3.0,
    )


def test_the_summary_holds_what_matters() -> None:
    text = render.summary(account(), colour=False)
    for part in (
        "9 tokens in 3.00 s: 3.0 tokens/s",
        "first after 250 ms",
        "mode sync, rejection",
        "finish: stop",
        "2 rounds, 7 round trips saved",
        "8 drafted and sent, 8 examined, 7 accepted (α 0.88)",
        "120 bytes up, 45 down",
    ):
        assert part in text, text
    assert "7 accepted, 1 correction, 1 bonus" in text
    assert "\x1b" not in text
    coloured = render.summary(account(), colour=True)
    assert "\x1b[32m" in coloured and "\x1b[31m" in coloured


def test_the_summary_of_a_target_alone_speaks_of_no_draft() -> None:
    result = Result(mode="target-only", verification="rejection", duration_s=0.0)
    text = render.summary(result, colour=False)
    assert "target-only" in text and "α" not in text and "written by" not in text


def test_tokens_whose_verdicts_were_lost_saved_no_round_trip() -> None:
    result = account()
    result.token_ids += [1, 2, 3]
    result.origins[Origin.CAUGHT_UP] = 3
    assert (result.round_trips_saved, result.tokens_per_round) == (7, 4.5)


def test_the_account_in_json() -> None:
    result = account()
    result.logprobs = [TokenLogprob(-0.5, ((3, -0.5), (4, -1.0)))]
    shown = result.to_json()
    assert shown["alpha"] == 7 / 8
    assert shown["alpha_by_position"] == [1.0, 1.0, 1.0, 0.5]
    assert shown["usage"] == {"prompt_tokens": 0, "cached_prompt_tokens": 0, "output_tokens": 9}
    assert shown["round_trips_saved"] == 7
    assert shown["logprobs"][0]["logprob"] == -0.5
    assert math.isclose(shown["tokens_per_s"], 3.0)
