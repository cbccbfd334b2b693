"""The policy at work, on a virtual clock: the real state machines between made-up times."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest

from edge_client.options import Mode
from netsim.session import Models, Run, SimulatedSession

DRAFT, VERIFY, EXTRA = 0.0083, 0.056, 0.0015
TOKENS = 192
DRAFTING = (Mode.SYNC, Mode.PIPELINE, Mode.RUN_AHEAD)


def steady(alpha: float) -> Callable[[int], float]:
    return lambda position: alpha


def bursts(seed: int, alpha: float = 0.9) -> Callable[[int], float]:
    """`alpha`, but for stretches of some tokens in which the draft knows little."""
    rng, poor = random.Random(seed), set[int]()
    position = 0
    while position < 4 * TOKENS:
        position += rng.randrange(20, 60)
        length = rng.randrange(6, 14)
        poor.update(range(position, position + length))
        position += length
    return lambda at: 0.25 if at in poor else alpha


def simulate(
    mode: Mode,
    rtt: float,
    agrees: Callable[[int], float],
    *,
    gamma: int | None = None,
    seed: int = 0,
    draft: float = DRAFT,
    tokens: int = TOKENS,
) -> Run:
    session = SimulatedSession(
        Models(draft, VERIFY, EXTRA, agrees),
        up=lambda size: rtt / 2,
        down=lambda size: rtt / 2,
        mode=mode,
        tokens=tokens,
        gamma=gamma,
        seed=seed,
    )
    return session.run()


def speed(mode: Mode, rtt: float, agrees: Callable[[int], float], **more: float | None) -> float:
    """Tokens/s over four seeds."""
    runs = [simulate(mode, rtt, agrees, seed=seed, **more) for seed in range(4)]  # type: ignore[arg-type]
    return sum(run.tokens for run in runs) / sum(run.duration_s for run in runs)


# ── closed forms ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rtt", [0.0, 0.1, 0.4])
def test_streaming_pays_the_round_trip_once(rtt: float) -> None:
    run = simulate(Mode.STREAM, rtt, steady(0.5))
    assert run.duration_s == pytest.approx(rtt + TOKENS * VERIFY)
    assert run.ttft_s == pytest.approx(rtt + VERIFY)
    assert (run.forwards, run.messages_up) == (TOKENS, 0)


@pytest.mark.parametrize("gamma", [1, 4, 8])
@pytest.mark.parametrize("rtt", [0.0, 0.1])
def test_synchronous_rounds_of_a_perfect_draft(gamma: int, rtt: float) -> None:
    tokens = 50 * (gamma + 1)
    run = simulate(Mode.SYNC, rtt, steady(1.0), gamma=gamma, tokens=tokens)
    a_round = rtt + gamma * DRAFT + VERIFY + gamma * EXTRA
    assert run.forwards == 50
    # The opening's way up is the first round's; its reply costs one more way down.
    assert run.duration_s == pytest.approx(50 * a_round + rtt, rel=0.01)


@pytest.mark.parametrize("mode", DRAFTING)
def test_a_hopeless_draft_decides_nothing_but_time(mode: Mode) -> None:
    run = simulate(mode, 0.05, steady(0.0), gamma=2, tokens=40)
    assert run.tokens == 40 and run.counts.accepted == 0 and run.forwards == 40


@pytest.mark.parametrize("mode", [*DRAFTING, Mode.AUTO])
def test_the_same_seed_gives_the_same_run(mode: Mode) -> None:
    assert simulate(mode, 0.07, steady(0.7), seed=5) == simulate(mode, 0.07, steady(0.7), seed=5)


@pytest.mark.parametrize("mode", [*DRAFTING, Mode.AUTO])
@pytest.mark.parametrize("gamma", [1, 3])
def test_a_fixed_gamma_is_never_exceeded(mode: Mode, gamma: int) -> None:
    run = simulate(mode, 0.05, steady(0.95), gamma=gamma)
    assert run.counts.proposed <= gamma * run.counts.proposals


# ── the policy ───────────────────────────────────────────────────────────────────────


@functools.cache
def best_fixed(rtt: float, kind: str, alpha: float, draft: float) -> float:
    agrees = bursts(1, alpha) if kind == "bursts" else steady(alpha)
    return max(
        [speed(Mode.STREAM, rtt, agrees)]
        + [
            speed(mode, rtt, agrees, gamma=gamma, draft=draft)
            for mode in DRAFTING
            for gamma in (1, 2, 4, 8)
        ]
    )


@pytest.mark.parametrize("rtt", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize(("alpha", "draft"), [(0.975, 0.0129), (0.7, DRAFT), (0.02, DRAFT)])
def test_auto_is_near_the_best_fixed_choice_on_every_link(
    rtt: float, alpha: float, draft: float
) -> None:
    mine = speed(Mode.AUTO, rtt, steady(alpha), draft=draft)
    assert mine >= 0.95 * best_fixed(rtt, "steady", alpha, draft)
    assert mine >= 0.95 * speed(Mode.STREAM, rtt, steady(alpha))


@pytest.mark.parametrize("rtt", [0.02, 0.1, 0.3])
def test_gamma_adapts_to_bursts_of_rejection(rtt: float) -> None:
    agrees = bursts(1)
    fixed = max(speed(Mode.SYNC, rtt, agrees, gamma=gamma) for gamma in range(1, 17))
    assert speed(Mode.SYNC, rtt, agrees) >= 0.9 * fixed
    assert speed(Mode.AUTO, rtt, agrees) >= 0.9 * best_fixed(rtt, "bursts", 0.9, DRAFT)


@pytest.mark.parametrize("rtt", [0.0, 0.05, 0.2])
def test_a_useless_draft_costs_next_to_nothing_and_is_given_up(rtt: float) -> None:
    streaming = simulate(Mode.STREAM, rtt, steady(0.0), tokens=1000)
    auto = simulate(Mode.AUTO, rtt, steady(0.0), tokens=1000)
    assert auto.duration_s <= 1.05 * streaming.duration_s
    assert auto.ways["stream"] > 600
    assert auto.counts.proposed < 800


def test_a_draft_that_becomes_useful_is_taken_up_again() -> None:
    def agrees(position: int) -> float:
        return 0.0 if position < 500 else 0.95

    run = simulate(Mode.AUTO, 0.1, agrees, tokens=1500)
    assert run.ways["stream"] > 250  # while it was useless
    late = simulate(Mode.AUTO, 0.1, steady(0.95), tokens=1000)
    assert run.duration_s < 500 * VERIFY * 1.05 + late.duration_s * 1.25


def test_a_slow_draft_is_not_waited_for() -> None:
    run = simulate(Mode.AUTO, 0.02, steady(0.9), draft=0.2)
    assert run.duration_s <= 1.05 * (0.02 + TOKENS * VERIFY)
