"""How much prompt rides along with rounds: learnt from how long forwards take."""

from __future__ import annotations

import itertools

from cloud_verifier.prefill import LEAST, MOST, PrefillShare

ROUND_S = 0.05


def forward_s(tokens: int, token_s: float) -> float:
    """A device on which a round takes `ROUND_S` and each prompt token a bit more."""
    return ROUND_S + tokens * token_s


def learnt(token_s: float, forwards: int = 200) -> list[int]:
    """The share after each of so many forwards that are filled with prompt."""
    share = PrefillShare()
    share.learn(ROUND_S, prefilled=0, rounds=3)
    shares = []
    for _ in range(forwards):
        share.learn(forward_s(share.tokens, token_s), prefilled=share.tokens, rounds=3)
        shares.append(share.tokens)
    return shares


def test_the_share_settles_where_a_forward_takes_at_most_twice_the_time() -> None:
    for token_s in (0.0002, 0.0005, 0.001, 0.002):
        shares = learnt(token_s)[50:]
        fitting = ROUND_S / token_s
        assert 0.3 * fitting < min(shares)
        assert max(shares) <= 1.25 * fitting
        slow = [s for s in shares if forward_s(s, token_s) > 2 * ROUND_S]
        assert len(slow) < len(shares) / 3


def test_the_share_has_bounds() -> None:
    assert set(learnt(1.0)[20:]) == {LEAST}
    assert learnt(0.0)[-1] == MOST


def test_it_shrinks_at_once_and_grows_slowly() -> None:
    falling = [64, *learnt(0.1)[:2]]
    assert falling == [64, 32, 16]
    rising = [64, *learnt(0.0)[:8]]
    assert all(a < b <= 1.25 * a for a, b in itertools.pairwise(rising))


def test_forwards_that_teach_nothing_change_nothing() -> None:
    share = PrefillShare()
    before = share.tokens
    share.learn(9.0, prefilled=512, rounds=0)  # nobody waited for it
    share.learn(9.0, prefilled=before, rounds=2)  # nothing to compare with yet
    assert share.tokens == before
    share.learn(ROUND_S, prefilled=0, rounds=1)
    share.learn(0.8 * ROUND_S, prefilled=before // 2, rounds=1)  # quick because it was small
    assert share.tokens == before


def test_one_slow_forward_without_prompt_is_soon_forgotten() -> None:
    share = PrefillShare()
    share.learn(ROUND_S, prefilled=0, rounds=1)
    share.learn(20 * ROUND_S, prefilled=0, rounds=1)
    for _ in range(30):
        share.learn(ROUND_S, prefilled=0, rounds=1)
    share.learn(3 * ROUND_S, prefilled=share.tokens, rounds=1)
    assert share.tokens == 32
