"""The policy at work, on a virtual clock: the real state machines between made-up times."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import pytest

from edge_client.policy.estimates import LinkEstimates
from netsim.acceptance import Acceptance
from netsim.comparison import Figures, Load
from netsim.links import LinkModel
from netsim.scenario import EDGE, Run, Scenario, Way
from netsim.simulation import simulate as simulate_all
from netsim.times import Models

DRAFT, VERIFY, EXTRA = 0.0083, 0.056, 0.0015
TOKENS = 192
FIXED = (Way.SYNC, Way.PIPELINE, Way.RUN_AHEAD)


def steady(alpha: float) -> Acceptance:
    return Acceptance.steady(alpha)


def changing(*parts: tuple[int, float]) -> Acceptance:
    """So many tokens with one acceptance rate, then so many with another, as recorded."""
    rng = random.Random(7)
    return Acceptance(recorded=[rng.random() < alpha for n, alpha in parts for _ in range(n)])


BURSTS = Acceptance(alphas=(0.9,), hard=0.25, hard_share=0.25, hard_length=10)


def simulate(
    way: Way,
    rtt: float,
    agrees: Acceptance,
    *,
    gamma: int | None = None,
    seed: int = 0,
    draft: float = DRAFT,
    tokens: int = TOKENS,
    extra: float = EXTRA,
    link: LinkEstimates | None = None,
) -> Run:
    scenario = Scenario(
        LinkModel.symmetric(rtt),
        Models.constant(draft, VERIFY, extra),
        agrees,
        way,
        gamma=gamma,
        tokens=tokens,
        prompt=0,
        seed=seed,
    )
    (run,) = simulate_all(scenario, link=link)
    return run


def together(way: Way, clients: int, alpha: float = 0.7, extra: float = 0.0) -> Figures:
    """Clients on one verifier."""
    scenario = Scenario(
        LinkModel.symmetric(0.05),
        Models.constant(DRAFT, VERIFY, extra),
        steady(alpha),
        way,
        tokens=TOKENS,
        prompt=0,
        clients=clients,
    )
    return Figures.of(way, simulate_all(scenario), clients)


def speed(way: Way, rtt: float, agrees: Acceptance, **more: float | None) -> float:
    """Tokens/s over eight seeds."""
    runs = [simulate(way, rtt, agrees, seed=seed, **more) for seed in range(8)]  # type: ignore[arg-type]
    return sum(run.tokens for run in runs) / sum(run.duration_s for run in runs)


# ── closed forms ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rtt", [0.0, 0.1, 0.4])
def test_streaming_pays_the_round_trip_once(rtt: float) -> None:
    run = simulate(Way.STREAM, rtt, steady(0.5))
    assert run.duration_s == pytest.approx(rtt + TOKENS * VERIFY)
    assert run.ttft_s == pytest.approx(rtt + VERIFY)
    assert (run.forwards, run.messages_up) == (TOKENS, 0)


@pytest.mark.parametrize("gamma", [1, 4, 8])
@pytest.mark.parametrize("rtt", [0.0, 0.1])
def test_synchronous_rounds_of_a_perfect_draft(gamma: int, rtt: float) -> None:
    tokens = 50 * (gamma + 1)
    run = simulate(Way.SYNC, rtt, steady(1.0), gamma=gamma, tokens=tokens)
    a_round = rtt + gamma * DRAFT + VERIFY + gamma * EXTRA
    assert run.forwards == 50
    # The opening's way up is the first round's; its reply costs one more way down.
    assert run.duration_s == pytest.approx(50 * a_round + rtt, rel=0.01)


@pytest.mark.parametrize("way", FIXED)
def test_a_hopeless_draft_decides_nothing_but_time(way: Way) -> None:
    run = simulate(way, 0.05, steady(0.0), gamma=2, tokens=40)
    assert run.tokens == 40 and run.accepted == 0 and run.forwards == 40


@pytest.mark.parametrize("gamma", [1, 4, 7])
def test_synchronous_rounds_of_a_hopeless_draft(gamma: int) -> None:
    run = simulate(Way.SYNC, 0.08, steady(0.0), gamma=gamma, tokens=400)
    a_round = 0.08 + gamma * DRAFT + VERIFY + gamma * EXTRA
    assert run.duration_s == pytest.approx(400 * a_round + 0.08, rel=0.01)


@pytest.mark.parametrize("rtt", [0.0, 0.1, 0.4])
def test_per_token_calls_pay_it_for_each_token_and_for_the_opening(rtt: float) -> None:
    run = simulate(Way.PER_TOKEN, rtt, steady(0.5))
    assert run.duration_s == pytest.approx(rtt + TOKENS * (rtt + VERIFY))


@pytest.mark.parametrize("way", EDGE)
def test_the_same_seed_gives_the_same_run(way: Way) -> None:
    assert simulate(way, 0.07, steady(0.7), seed=5) == simulate(way, 0.07, steady(0.7), seed=5)


@pytest.mark.parametrize("way", EDGE)
@pytest.mark.parametrize("gamma", [1, 3])
def test_a_fixed_gamma_is_never_exceeded(way: Way, gamma: int) -> None:
    run = simulate(way, 0.05, steady(0.95), gamma=gamma)
    assert run.proposed <= gamma * run.messages_up


# ── the policy ───────────────────────────────────────────────────────────────────────


@functools.cache
def best_fixed(rtt: float, kind: str, alpha: float, draft: float) -> float:
    agrees = BURSTS if kind == "bursts" else steady(alpha)
    return max(
        [speed(Way.STREAM, rtt, agrees)]
        + [
            speed(way, rtt, agrees, gamma=gamma, draft=draft)
            for way in FIXED
            for gamma in (1, 2, 4, 8)
        ]
    )


@pytest.mark.parametrize("rtt", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize(("alpha", "draft"), [(0.975, 0.0129), (0.7, DRAFT), (0.02, DRAFT)])
def test_auto_is_near_the_best_fixed_choice_on_every_link(
    rtt: float, alpha: float, draft: float
) -> None:
    mine = speed(Way.AUTO, rtt, steady(alpha), draft=draft)
    assert mine >= 0.95 * best_fixed(rtt, "steady", alpha, draft)
    assert mine >= 0.95 * speed(Way.STREAM, rtt, steady(alpha))


@pytest.mark.parametrize("rtt", [0.02, 0.1, 0.3])
def test_gamma_adapts_to_bursts_of_rejection(rtt: float) -> None:
    agrees = BURSTS
    fixed = max(speed(Way.SYNC, rtt, agrees, gamma=gamma) for gamma in range(1, 17))
    assert speed(Way.SYNC, rtt, agrees) >= 0.9 * fixed
    assert speed(Way.AUTO, rtt, agrees) >= 0.9 * best_fixed(rtt, "bursts", 0.9, DRAFT)


@pytest.mark.parametrize("rtt", [0.0, 0.05, 0.2])
def test_a_useless_draft_costs_next_to_nothing_and_is_given_up(rtt: float) -> None:
    streaming = simulate(Way.STREAM, rtt, steady(0.0), tokens=1000)
    auto = simulate(Way.AUTO, rtt, steady(0.0), tokens=1000)
    assert auto.duration_s <= 1.05 * streaming.duration_s
    assert auto.ways["stream"] > 600
    assert auto.proposed < 800


def answers(rtt: float, texts: int, way: Way, *, link: LinkEstimates, seed: int) -> list[Run]:
    """Short ones, one after the other, of a client whose draft is right 19 times in 20."""
    return [
        simulate(way, rtt, steady(0.95), tokens=64, draft=0.0129, seed=seed + i, link=link)
        for i in range(texts)
    ]


@pytest.mark.parametrize("rtt", [0.2, 0.4, 0.8])
def test_short_answers_over_a_long_link_are_drafted_for_whatever_luck_the_first_had(
    rtt: float,
) -> None:
    """An unlucky answer in ten would once have kept drafts out of all that followed."""
    fixed = auto = 0.0
    for client in range(8):
        seed = 100 * client
        fixed += sum(
            run.duration_s
            for run in answers(rtt, 6, Way.RUN_AHEAD, link=LinkEstimates(), seed=seed)
        )
        found = answers(rtt, 6, Way.AUTO, link=LinkEstimates(), seed=seed)
        auto += sum(run.duration_s for run in found)
    assert auto <= 1.05 * fixed


def test_what_promises_nothing_is_tried_again_after_several_short_answers() -> None:
    link = LinkEstimates()
    for seed in range(4):
        simulate(Way.AUTO, 0.1, steady(0.0), tokens=64, draft=0.0129, seed=seed, link=link)
    before = link.alpha.value
    runs = answers(0.1, 8, Way.AUTO, link=link, seed=10)
    assert before is not None and before < 0.5
    assert runs[0].ways["stream"] > 0
    assert runs[-1].ways.get("stream", 0) == 0


def test_a_draft_that_becomes_useful_is_taken_up_again() -> None:
    run = simulate(Way.AUTO, 0.1, changing((500, 0.0), (1000, 0.95)), tokens=1500)
    assert run.ways["stream"] > 250  # while it was useless
    late = simulate(Way.AUTO, 0.1, steady(0.95), tokens=1000)
    assert run.duration_s < 500 * VERIFY * 1.05 + late.duration_s * 1.25


def test_a_slow_draft_is_not_waited_for() -> None:
    run = simulate(Way.AUTO, 0.02, steady(0.9), draft=0.2)
    assert run.duration_s <= 1.05 * (0.02 + TOKENS * VERIFY)


# ── many clients ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("clients", [1, 2, 8])
def test_streaming_clients_share_every_forward(clients: int) -> None:
    found = together(Way.STREAM, clients)
    assert found.forwards == pytest.approx(1 / clients)
    alone = TOKENS / (0.05 + TOKENS * VERIFY)
    assert found.load.tokens_per_s == pytest.approx(clients * alone)
    assert found.load.token_p95_s == pytest.approx(VERIFY)


@pytest.mark.parametrize("way", [Way.STREAM, Way.CLOUD, Way.RUN_AHEAD])
def test_a_forward_of_many_takes_longer_where_tokens_cost(way: Way) -> None:
    alone, many = together(way, 1, extra=0.004), together(way, 8, extra=0.004)
    assert many.load.token_p50_s > 1.2 * alone.load.token_p50_s
    assert many.load.tokens_per_s > alone.load.tokens_per_s
    assert many.forwards < alone.forwards


@pytest.mark.parametrize("extra", [0.0005, 0.004, 0.01])
@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_drafts_of_many_clients_never_cost_the_others_much(alpha: float, extra: float) -> None:
    streaming = together(Way.STREAM, 16, alpha, extra)
    found = together(Way.RUN_AHEAD, 16, alpha, extra)
    # Where every draft token was examined, whatever it cost, this was 0.25 at worst.
    assert found.load.token_p50_s < 1.1 * streaming.load.token_p50_s
    assert found.load.tokens_per_s > 0.85 * streaming.load.tokens_per_s


def test_the_load_is_told_from_all_clients_runs() -> None:
    runs = [
        Run("stream", arrivals=[1.0, 2.0, 3.0]),
        Run("stream", arrivals=[2.0, 2.0, 6.0]),
        Run("stream", arrivals=[1.0, 1.5, 2.0]),
        Run("stream", arrivals=[1.0, 1.5, 2.0]),
    ]
    load = Load.of(runs, clients=2)
    assert load.tokens_per_s == pytest.approx(12 / (6.0 + 2.0))
    assert (load.token_p50_s, load.token_p95_s) == (1.0, 2.0)
    assert (load.ttft_p50_s, load.ttft_p95_s) == (1.0, 2.0)
    assert load.pause_p99_s == 4.0


@pytest.mark.parametrize("way", Way)
def test_a_new_connection_costs_two_round_trips(way: Way) -> None:
    scenario = Scenario(
        LinkModel.symmetric(0.1), Models.constant(DRAFT, VERIFY), steady(0.7), way, tokens=64
    )
    (warm,) = simulate_all(scenario)
    (cold,) = simulate_all(replace(scenario, connect=True))
    assert cold.ttft_s == pytest.approx(warm.ttft_s + 0.2)
    assert cold.bytes_up > warm.bytes_up
