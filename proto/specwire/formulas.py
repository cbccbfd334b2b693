"""Expected tokens and times of speculative decoding, in closed form.

Times are in seconds. `alpha` is the acceptance rate, taken as independent of
position, `gamma` the draft tokens of a proposal.
"""

from __future__ import annotations

from collections.abc import Sequence


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a round yields: (1 − α^(γ+1)) / (1 − α). Leviathan et al. 2023, eq. 1."""
    _check(alpha, gamma)
    return expected_tokens_by_position([alpha] * gamma)


def expected_tokens_by_position(alphas: Sequence[float]) -> float:
    """The same where token i is accepted with alphas[i], given all before it were.

    1 + α₀ + α₀α₁ + …: the target's own token, and each draft token that gets through.
    """
    total = product = 1.0
    for alpha in alphas:
        _check(alpha, 0)
        product *= alpha
        total += product
    return total


def expected_speedup(alpha: float, gamma: int, cost: float) -> float:
    """Speed against plain decoding on one machine. Leviathan et al. 2023, theorem 3.8.

    `cost` is the time of one draft token divided by that of one target forward.
    """
    return expected_tokens(alpha, gamma) / (gamma * cost + 1.0)


def per_token_time(tokens: int, rtt_s: float, verify_s: float) -> float:
    """Seconds for `tokens` where every token costs a round trip."""
    return tokens * (rtt_s + verify_s)


def streaming_time(tokens: int, rtt_s: float, verify_s: float) -> float:
    """Seconds for `tokens` streamed by the cloud: the round trip is paid once."""
    return rtt_s + tokens * verify_s


def synchronous_time(
    tokens: int, alpha: float, gamma: int, *, rtt_s: float, draft_s: float, verify_s: float
) -> float:
    """Seconds for `tokens` where the edge drafts γ tokens, then waits for the verdict."""
    rounds = tokens / expected_tokens(alpha, gamma)
    return rounds * (rtt_s + verify_s + gamma * draft_s)


def _check(alpha: float, gamma: int) -> None:
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
    if gamma < 0:
        raise ValueError(f"gamma must be 0 or more, not {gamma}")
