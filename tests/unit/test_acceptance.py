"""The rule of acceptance, exactly: every path summed up with its probability.

`examine_rejection` and `examine_coupled` are treated as black boxes that map noise
to an outcome. An outcome is constant between breakpoints of each uniform number;
bisection finds them to the last bit, interval lengths are probabilities, and what
they sum up to must be the target's own distribution. No draw, no error probability.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from specwire.acceptance import (
    acceptance_probability,
    coupled_noise,
    coupled_tokens,
    draw,
    examine_coupled,
    examine_greedy,
    examine_rejection,
    rejection_noise,
)
from specwire.qrow import QRow, Truncation, draft_row, point_row, stack_rows
from specwire.sampling import SamplingParams, distribution

EXACT = 1e-12
LOW, HIGH = 2.0**-53, 1.0 - 2.0**-53  # what `uniform` returns at the least and the most

Context = tuple[int, ...]
Make = Callable[[Any], Any]


def numpy_array(values: Any) -> Any:
    return np.asarray(values)


def torch_array(values: Any) -> Any:
    return torch.asarray(np.asarray(values))


LIBRARIES = pytest.mark.parametrize("make", [numpy_array, torch_array], ids=["numpy", "torch"])


# ── models: a distribution for every prefix ──────────────────────────────────────────


class Model:
    """p for every prefix: random, with zeros here and there."""

    def __init__(self, size: int, seed: int, *, zeros: bool) -> None:
        self.size, self._seed, self._zeros = size, seed, zeros
        self._rows: dict[Context, np.ndarray] = {}

    def p(self, prefix: Context) -> np.ndarray:
        if prefix not in self._rows:
            noise = np.random.default_rng([self._seed, len(prefix), *prefix])
            logits = noise.normal(scale=1.5, size=(1, self.size))
            if self._zeros:
                logits[0, noise.integers(self.size)] = -np.inf
            self._rows[prefix] = distribution(logits, SamplingParams())[0]
        return self._rows[prefix]

    def joint(self, length: int) -> dict[Context, float]:
        return dict(self._extend((), 1.0, length))

    def _extend(self, prefix: Context, chance: float, length: int) -> Iterator[tuple[Context, Any]]:
        if len(prefix) == length:
            yield prefix, chance
            return
        for token, p in enumerate(self.p(prefix)):
            yield from self._extend((*prefix, token), chance * float(p), length)


QRule = Callable[[Model, Context], QRow]


def _noise(prefix: Context) -> np.random.Generator:
    return np.random.default_rng([77, len(prefix), *prefix])


def sparse_q(model: Model, prefix: Context) -> QRow:
    """What an edge really makes: another model's row, truncated and quantised."""
    logits = _noise(prefix).normal(scale=1.5, size=model.size).astype(np.float32)
    truncation = Truncation(cover=0.9, cap=2 if model.size == 2 else 3, weight_bits=3)
    return draft_row(logits, SamplingParams(), truncation, size=model.size)


def narrow_q(model: Model, prefix: Context) -> QRow:
    """At most two ids, so that p has mass that q can't reach."""
    logits = _noise(prefix).normal(size=model.size)
    return draft_row(logits, SamplingParams(), Truncation(0.99, 2, 2), size=model.size)


def point_q(model: Model, prefix: Context) -> QRow:
    return point_row(int(_noise(prefix).integers(model.size)))


def equal_q(model: Model, prefix: Context) -> QRow:
    p = model.p(prefix)
    ids = np.flatnonzero(p)
    return QRow(ids.astype(np.int64), p[ids])


def disjoint_q(model: Model, prefix: Context) -> QRow:
    """All mass where p has none (p has a zero in every row)."""
    return point_row(int(np.flatnonzero(model.p(prefix) == 0.0)[0]))


def mixed_q(model: Model, prefix: Context) -> QRow:
    rules = (sparse_q, point_q, equal_q, narrow_q)
    return rules[(len(prefix) + sum(prefix)) % len(rules)](model, prefix)


# ── exact probabilities of a black box ───────────────────────────────────────────────


def pieces(outcome: Callable[[float], int]) -> dict[int, float]:
    """The probability of each value of a step function of one uniform number."""
    result: dict[int, float] = {}

    def split(low: float, low_value: int, high: float, high_value: int) -> None:
        middle = (low + high) / 2
        if low_value == high_value or not low < middle < high or high - low < 2e-16:
            for value in (low_value, high_value):
                result[value] = result.get(value, 0.0) + (high - low) / 2
            return
        value = outcome(middle)
        split(low, low_value, middle, value)
        split(middle, value, high, high_value)

    # Whoever is not monotone would be found out by the points in between.
    grid = [LOW, *(np.arange(1, 8) / 8), HIGH]
    values = [outcome(at) for at in grid]
    for (low, a), (high, b) in itertools.pairwise(zip(grid, values, strict=True)):
        split(float(low), a, float(high), b)
    return result


class Round:
    """One examination of given drafts, as a function of its noise."""

    def __init__(self, model: Model, tokens: Context, q: Sequence[QRow], make: Make) -> None:
        n = len(tokens)
        self.n, self.make = n, make
        self.p = make(np.stack([model.p(tokens[:i]) for i in range(n + 1)]))
        self.tokens = make(np.array(tokens, np.int64))
        self.q = stack_rows(q, model.size, self.p)

    def __call__(self, accept: Sequence[float], draws: Sequence[float]) -> tuple[int, int]:
        result = examine_rejection(
            self.p,
            self.tokens,
            self.q,
            self.make(np.array(accept, np.float64)),
            self.make(np.array(draws, np.float64)),
        )
        return int(result.accepted), int(result.token)

    def outcomes(self) -> dict[tuple[int, int], float]:
        """P(accepted, token): noise i matters only to who gets as far as i."""
        n, chance = self.n, 1.0
        result: dict[tuple[int, int], float] = {}
        middle = [0.5] * (n + 1)
        for i in range(n + 1):

            def accepted_from(noise: float, i: int = i) -> int:
                return int(self([LOW] * i + [noise] + [HIGH] * (n - i - 1), middle)[0] > i)

            through = pieces(accepted_from).get(1, 0.0) if i < n else 0.0
            if through < 1.0 - EXACT:

                def token_at(noise: float, i: int = i) -> int:
                    draws = [*middle[:i], noise, *middle[i + 1 :]]
                    accepted, token = self([LOW] * i + [HIGH] * (n - i), draws)
                    assert accepted == i
                    return token

                for token, share in pieces(token_at).items():
                    result[i, token] = chance * (1.0 - through) * share
            chance *= through
            if chance < EXACT:
                break
        return result


def committed(model: Model, rule: QRule, gamma: int, make: Make) -> dict[Context, float]:
    """The joint distribution of the first γ+1 tokens that rounds of γ drafts commit."""
    result: dict[Context, float] = {}
    for drafts in itertools.product(range(model.size), repeat=gamma):
        rows = [rule(model, drafts[:i]) for i in range(gamma)]
        weight = float(np.prod([row.prob(t) for row, t in zip(rows, drafts, strict=True)]))
        if weight == 0.0:
            continue
        for (accepted, token), chance in Round(model, drafts, rows, make).outcomes().items():
            assert token >= 0
            prefix = (*drafts[:accepted], token)
            for output, p in model._extend(prefix, weight * chance, gamma + 1):
                result[output] = result.get(output, 0.0) + p
    return result


def assert_equal_distributions(seen: dict[Context, float], true: dict[Context, float]) -> None:
    assert set(seen) <= set(true)
    worst = max(abs(seen.get(output, 0.0) - p) for output, p in true.items())
    assert worst < EXACT


RULES = [sparse_q, narrow_q, point_q, equal_q, mixed_q]


@pytest.mark.parametrize("zeros", [False, True], ids=["full", "zeros"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize(("size", "gamma"), [(2, 0), (2, 1), (2, 3), (2, 4), (3, 1), (3, 2)])
def test_committed_tokens_are_distributed_as_the_target(
    size: int, gamma: int, rule: QRule, zeros: bool
) -> None:
    model = Model(size, 10 * size + gamma, zeros=zeros)
    assert_equal_distributions(committed(model, rule, gamma, numpy_array), model.joint(gamma + 1))


@pytest.mark.parametrize("gamma", [3, 4])
def test_the_same_with_three_tokens_and_longer_drafts(gamma: int) -> None:
    model = Model(3, 5, zeros=True)
    assert_equal_distributions(
        committed(model, mixed_q, gamma, numpy_array), model.joint(gamma + 1)
    )


@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
def test_the_same_with_drafts_that_the_target_excludes(gamma: int) -> None:
    model = Model(3, 3, zeros=True)
    assert_equal_distributions(
        committed(model, disjoint_q, gamma, numpy_array), model.joint(gamma + 1)
    )


@pytest.mark.parametrize(
    ("size", "gamma", "rule"),
    [(2, 0, point_q), (2, 2, sparse_q), (3, 1, mixed_q), (3, 1, disjoint_q), (2, 2, equal_q)],
)
def test_the_same_in_torch(size: int, gamma: int, rule: QRule) -> None:
    model = Model(size, 40 + gamma, zeros=True)
    assert_equal_distributions(committed(model, rule, gamma, torch_array), model.joint(gamma + 1))


def test_the_sum_finds_a_wrong_rule() -> None:
    """The check itself: q that is not what was drawn from shows at once (S2)."""
    model = Model(3, 1, zeros=False)
    drawn = QRow(np.arange(3), np.array([0.25, 0.25, 0.5]))
    claimed = QRow(np.arange(3), np.array([0.5, 0.25, 0.25]))
    seen: dict[Context, float] = {}
    for token in range(3):
        outcomes = Round(model, (token,), [claimed], numpy_array).outcomes()
        for (accepted, own), chance in outcomes.items():
            prefix = (*(token,)[:accepted], own)
            for output, p in model._extend(prefix, drawn.prob(token) * chance, 2):
                seen[output] = seen.get(output, 0.0) + p
    assert sum(seen.values()) == pytest.approx(1.0, abs=EXACT)
    with pytest.raises(AssertionError):
        assert_equal_distributions(seen, model.joint(2))


def test_outcomes_depend_on_nothing_but_the_noise_they_should() -> None:
    """Backs the enumeration: noise of positions that are not reached changes nothing."""
    model, random = Model(3, 9, zeros=True), np.random.default_rng(0)
    drafts = (0, 2, 1, 1)
    rows = [mixed_q(model, drafts[:i]) for i in range(4)]
    rows = [row if row.prob(t) else point_row(t) for row, t in zip(rows, drafts, strict=True)]
    examine = Round(model, drafts, rows, numpy_array)
    for _ in range(200):
        accept, draws = random.uniform(size=4), random.uniform(size=5)
        accepted, token = examine(accept.tolist(), draws.tolist())
        other_accept, other_draws = random.uniform(size=4), random.uniform(size=5)
        other_accept[: accepted + 1] = accept[: accepted + 1]
        other_draws[accepted] = draws[accepted]
        assert examine(other_accept.tolist(), other_draws.tolist()) == (accepted, token)


# ── both libraries alike ─────────────────────────────────────────────────────────────


def random_round(seed: int, size: int, n: int) -> tuple[np.ndarray, np.ndarray, list[QRow]]:
    random = np.random.default_rng(seed)
    params = SamplingParams(top_k=size // 2)
    p = distribution(random.normal(scale=2, size=(n + 1, size)), params)
    rows = [
        draft_row(random.normal(scale=2, size=size), SamplingParams(), Truncation(), size=size)
        for _ in range(n)
    ]
    tokens = np.array([random.choice(row.ids, p=row.probs) for row in rows], np.int64)
    return p, tokens, rows


@pytest.mark.parametrize("seed", range(40))
def test_numpy_and_torch_agree_outcome_for_outcome(seed: int) -> None:
    n = seed % 6
    p, tokens, rows = random_round(seed, 50, n)
    accept, draws = rejection_noise(seed, 100, n)
    results = []
    for make in (numpy_array, torch_array):
        rejection = examine_rejection(
            make(p),
            make(tokens),
            stack_rows(rows, 50, make(p)),
            make(np.array(accept)),
            make(np.array(draws)),
        )
        coupled = examine_coupled(make(p), make(tokens), coupled_noise(seed, 100, n, make(p)))
        results.append([int(x) for x in (*rejection, *coupled)])
    assert results[0] == results[1]
    assert 0 <= results[0][0] <= n and 0 <= results[0][2] <= n


@LIBRARIES
def test_results_are_plain_integers_and_inputs_stay_as_they_are(make: Make) -> None:
    p, tokens, rows = random_round(3, 50, 4)
    accept, draws = rejection_noise(3, 0, 4)
    inputs = [make(x) for x in (p, tokens, np.array(accept), np.array(draws))]
    q = stack_rows(rows, 50, inputs[0])
    before = [np.asarray(x).copy() for x in (*inputs, *q)]
    result = examine_rejection(inputs[0], inputs[1], q, inputs[2], inputs[3])
    examine_coupled(inputs[0], inputs[1], coupled_noise(3, 0, 4, inputs[0]))
    for value, copy in zip((*inputs, *q), before, strict=True):
        assert np.array_equal(np.asarray(value), copy)
    for value in result:
        assert tuple(value.shape) == () and "int64" in str(value.dtype)


# ── numbers from the literature of faults ────────────────────────────────────────────


def accept_probability(p: list[float], q: QRow, make: Make = numpy_array) -> float:
    """P(accepted) of one draft from q, summed up exactly."""
    rows = make(np.array([p, p]))
    total = 0.0
    for token, weight in zip(q.ids.tolist(), q.probs.tolist(), strict=True):

        def accepted(noise: float, token: int = token) -> int:
            return int(
                examine_rejection(
                    rows,
                    make(np.array([token])),
                    stack_rows([q], len(p), rows),
                    make(np.array([noise])),
                    make(np.array([0.5, 0.5])),
                ).accepted
            )

        total += weight * pieces(accepted).get(1, 0.0)
    return total


@LIBRARIES
def test_s3_mean_acceptance(make: Make) -> None:
    p = [0.6, 0.3, 0.1]
    q = QRow(np.arange(3), np.array([0.3, 0.5, 0.2]))
    assert accept_probability(p, q, make) == pytest.approx(0.70, abs=EXACT)
    assert acceptance_probability(p, [0.3, 0.5, 0.2]) == pytest.approx(0.70, abs=EXACT)


@LIBRARIES
def test_s3_equal_distributions_accept_always(make: Make) -> None:
    p = [0.6, 0.3, 0.1]
    assert acceptance_probability(p, p) == pytest.approx(1.0, abs=EXACT)
    q = QRow(np.arange(3), np.array(p))
    rows = make(np.array([p, p]))
    for token, noise in itertools.product(range(3), (LOW, 0.25, 0.5, 0.999, HIGH)):
        result = examine_rejection(
            rows,
            make(np.array([token])),
            stack_rows([q], 3, rows),
            make(np.array([noise])),
            make(np.array([0.5, 0.5])),
        )
        assert int(result.accepted) == 1


def test_acceptance_is_certain_for_p_equal_q_whatever_the_values() -> None:
    """HIGH × q never rounds up to q: tried on values of every binade and mantissa."""
    random = np.random.default_rng(1)
    values = np.concatenate([random.uniform(size=20_000) ** k for k in (1, 3, 40)])
    values = np.concatenate([values, 2.0 ** -np.arange(0.0, 60.0), np.nextafter(values, 0)])
    values = values[values > 0]
    assert (values * HIGH < values).all()


@LIBRARIES
def test_s2_both_sides_truncate(make: Make) -> None:
    """top_k = 2 at both ends: what comes out is the target's truncated distribution."""
    params = SamplingParams(top_k=2)
    p = distribution(np.log([[0.5, 0.3, 0.2]] * 2), params)
    assert p[0] == pytest.approx([0.625, 0.375, 0.0], abs=EXACT)
    q = draft_row(np.log([0.4, 0.3001, 0.2999]), params, Truncation(1.0, 16, 6), size=3)
    assert q.ids.tolist() == [0, 1]
    rows, result = make(p), np.zeros(3)
    for token, weight in zip(q.ids.tolist(), q.probs.tolist(), strict=True):
        model = Model(3, 0, zeros=False)
        model._rows = {(): p[0], (token,): p[1]}
        outcomes = Round(model, (token,), [q], make).outcomes()
        for (accepted, own), chance in outcomes.items():
            result[token if accepted else own] += weight * chance
    assert result == pytest.approx([0.625, 0.375, 0.0], abs=EXACT)
    assert rows.shape == (2, 3)


# ── numerical edges ──────────────────────────────────────────────────────────────────


def examine_one(
    make: Make, p: list[list[float]], token: int, q: QRow, accept: float, draws: float = 0.5
) -> tuple[int, int]:
    rows = make(np.array(p))
    result = examine_rejection(
        rows,
        make(np.array([token])),
        stack_rows([q], rows.shape[1], rows),
        make(np.array([accept])),
        make(np.array([draws, draws])),
    )
    return int(result.accepted), int(result.token)


@LIBRARIES
def test_no_residual_falls_back_to_p(make: Make) -> None:
    """p a hair below q everywhere: a rejection finds nothing above q."""
    p = [0.5 - 1e-16, 0.5 - 1e-16]
    q = QRow(np.arange(2), np.array([0.5, 0.5]))
    for draws, token in ((0.1, 0), (0.9, 1)):
        assert examine_one(make, [p, p], 0, q, HIGH, draws) == (0, token)


@LIBRARIES
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_unusable_row_gives_no_token(make: Make, bad: float) -> None:
    rows = [[bad, 0.5, 0.5], [0.2, 0.3, 0.5]]
    q = QRow(np.arange(3), np.array([0.25, 0.25, 0.5]))
    # Token 1 is rejected for sure only if its own p is small, so ask with a draft of token 2.
    accepted, token = examine_one(make, rows, 2, point_row(2), HIGH)
    assert (accepted, token) == (0, -1)
    nothing = [[0.0, 0.0, 0.0], [0.2, 0.3, 0.5]]
    assert examine_one(make, nothing, 1, q, 0.5) == (0, -1)
    all_nan = [[np.nan] * 3, [0.2, 0.3, 0.5]]
    assert examine_one(make, all_nan, 1, q, LOW) == (0, -1)


@LIBRARIES
def test_an_unusable_row_after_a_rejection_does_not_matter(make: Make) -> None:
    rows = [[0.0, 0.5, 0.5], [np.nan] * 3]
    assert examine_one(make, rows, 0, point_row(0), LOW, 0.25) == (0, 1)
    # The same row as the bonus row, reached: it must not be hidden.
    rows = [[1.0, 0.0, 0.0], [np.nan] * 3]
    assert examine_one(make, rows, 0, point_row(0), 0.5) == (1, -1)


@LIBRARIES
def test_without_drafts_the_token_is_drawn_from_p(make: Make) -> None:
    p = make(np.array([[0.25, 0.0, 0.75]]))
    empty = make(np.zeros(0, np.int64))
    for noise, token in ((LOW, 0), (0.2499, 0), (0.2501, 2), (HIGH, 2)):
        result = examine_rejection(
            p, empty, stack_rows([], 3, p), make(np.zeros(0)), make(np.array([noise]))
        )
        assert (int(result.accepted), int(result.token)) == (0, token)
    noise = make(np.array([[1.0, 0.1, 2.0]]))
    result = examine_coupled(p, empty, noise)
    assert (int(result.accepted), int(result.token)) == (0, 2)


@LIBRARIES
@pytest.mark.parametrize(
    "weights",
    [
        [0, 0, 1, 0, 0],
        [0, 1, 0, 2, 0],
        [1e-300, 0, 0],
        [0, 1e-320, 0],
        [0, 0.1, 0.2, 0.3, 0.1, 0.3, 0],
        [1e300, 0, 1e-300, 0],
        [0, 1 / 3, 1 / 3, 1 / 3, 0],
    ],
)
def test_draw_never_returns_an_index_without_weight(make: Make, weights: list[float]) -> None:
    row = make(np.array(weights, np.float64))
    noise = [LOW, HIGH, 0.5, *np.random.default_rng(0).uniform(size=50)]
    # Right at the running sums as well, where an index off by one would show.
    total = sum(weights)
    for running in np.cumsum(weights):
        share = running / total
        noise += [x for x in (np.nextafter(share, 0), share, np.nextafter(share, 1)) if 0 < x < 1]
    for value in noise:
        index = int(draw(row, make(np.array(float(value)))))
        assert weights[index] > 0, value


@LIBRARIES
def test_draw_covers_the_weights_in_proportion(make: Make) -> None:
    weights = [0.0, 3.0, 0.0, 1.0, 4.0]
    row = make(np.array(weights))
    seen = pieces(lambda noise: int(draw(row, make(np.array(noise)))))
    assert seen == pytest.approx({1: 3 / 8, 3: 1 / 8, 4: 4 / 8}, abs=EXACT)


@LIBRARIES
@pytest.mark.parametrize("weights", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [1e308, 1e308]])
def test_draw_refuses_a_total_that_is_no_number(make: Make, weights: list[float]) -> None:
    with np.errstate(over="ignore"):
        assert int(draw(make(np.array(weights)), make(np.array(0.5)))) == -1


# ── coupled ──────────────────────────────────────────────────────────────────────────


@LIBRARIES
@pytest.mark.parametrize(("size", "n"), [(2, 4), (3, 3), (3, 0)])
def test_coupled_commits_the_targets_own_tokens_whatever_the_draft(
    make: Make, size: int, n: int
) -> None:
    for seed in range(5):
        p = distribution(np.random.default_rng(seed).normal(size=(n + 1, size)), SamplingParams())
        noise = coupled_noise(seed, 10, n, make(p))
        own = np.asarray(coupled_tokens(make(p), noise)).tolist()
        for drafts in itertools.product(range(size), repeat=n):
            result = examine_coupled(make(p), make(np.array(drafts, np.int64)), noise)
            accepted, token = int(result.accepted), int(result.token)
            assert [*drafts[:accepted], token] == own[: accepted + 1]
            assert accepted == n or drafts[accepted] != token


@LIBRARIES
def test_coupled_noise_of_a_position_does_not_depend_on_the_round(make: Make) -> None:
    p = make(np.full((4, 5), 0.2))
    whole = np.asarray(coupled_noise(9, 100, 3, p))
    part = np.asarray(coupled_noise(9, 102, 1, p[:2]))
    assert np.array_equal(whole[2:], part)


@LIBRARIES
@pytest.mark.parametrize(
    "p", [[1 / 2, 1 / 2], [1 / 4, 3 / 4], [1 / 3, 2 / 3], [1 / 2, 1 / 3, 1 / 6], [1 / 3] * 3]
)
def test_the_coupled_token_follows_p(make: Make, p: list[float]) -> None:
    """P(token = i) = ∫ Π_j P(noise_j is too large | u_i) du_i, each factor by bisection.

    The integrand is (1 − u)^(1/p_i − 1). Where the exponent is a whole number,
    Gauss-Legendre quadrature sums it up exactly; the token that is left has the rest.
    """
    nodes, weights = np.polynomial.legendre.leggauss(6)
    seen = {}
    for i in (i for i, share in enumerate(p) if (1 / share) % 1 < 1e-9):
        total = 0.0
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            product = 1.0
            for j in (j for j in range(len(p)) if j != i):

                def wins(u: float, i: int = i, j: int = j, node: float = node) -> int:
                    uniform = np.full(len(p), HIGH)
                    uniform[i], uniform[j] = node, u
                    row = make(-np.log1p(-uniform)[None])
                    result = examine_coupled(make(np.array([p])), make(np.zeros(0, np.int64)), row)
                    return int(int(result.token) == i)

                product *= pieces(wins).get(1, 0.0)
            total += weight * product
        seen[i] = total
    assert seen
    for i, total in seen.items():
        assert total == pytest.approx(p[i], abs=EXACT)


@LIBRARIES
def test_coupled_tokens_without_mass_never_win(make: Make) -> None:
    p = make(np.array([[0.0, 1e-300, 0.0], [0.0, 0.0, 0.0], [np.nan, 0.5, 0.5], [0, 1, 0]]))
    noise = make(np.array([[1e-16, 30.0, 1e-16]] * 4))
    assert np.asarray(coupled_tokens(p, noise)).tolist() == [1, -1, -1, 1]


@LIBRARIES
def test_coupled_tokens_of_hardly_any_mass_are_no_trouble(make: Make) -> None:
    """noise / p is infinite for the smallest numbers there are."""
    p = make(np.array([[5e-324, 1.0]]))
    assert np.asarray(coupled_tokens(p, make(np.array([[1.0, 30.0]])))).tolist() == [1]


@LIBRARIES
def test_a_coupled_row_that_is_unusable_matters_only_where_it_is_reached(make: Make) -> None:
    p = make(np.array([[1.0, 0.0], [np.nan, np.nan]]))
    noise = make(np.ones((2, 2)))
    rejected = examine_coupled(p, make(np.array([1])), noise)
    assert (int(rejected.accepted), int(rejected.token)) == (0, 0)
    reached = examine_coupled(p, make(np.array([0])), noise)
    assert (int(reached.accepted), int(reached.token)) == (1, -1)


@LIBRARIES
@pytest.mark.parametrize("gamma", [0, 1, 3])
def test_at_temperature_zero_both_rules_come_to_the_greedy_one(make: Make, gamma: int) -> None:
    """Every draft and every place of the ones: `examine_greedy` says what both rules say."""
    size = 3
    for best in itertools.product(range(size), repeat=gamma + 1):
        p = make(np.eye(size)[list(best)])
        for drafts in itertools.product(range(size), repeat=gamma):
            tokens = make(np.array(drafts, np.int64))
            greedy = examine_greedy(make(np.array(best, np.int64)), tokens)
            accept, noise = rejection_noise(7, 5, gamma)
            spread = QRow(np.arange(size), np.full(size, 1 / size))
            for rows in ([point_row(t) for t in drafts], [spread] * gamma):
                q = stack_rows(rows, size, p)
                ruled = examine_rejection(
                    p, tokens, q, make(np.array(accept)), make(np.array(noise))
                )
                assert [int(x) for x in ruled] == [int(x) for x in greedy]
            coupled = examine_coupled(p, tokens, coupled_noise(7, 5, gamma, p))
            assert [int(x) for x in coupled] == [int(x) for x in greedy]
