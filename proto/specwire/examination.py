"""From a round's logits to its outcome: how many drafts are accepted, and the target's own token.

`acceptance` is the rule on distributions; here it meets a session's request, its noise
and its sampling parameters. Functions of their arguments alone: whoever holds a target's
logits, a verifier or a device that runs both models, examines with these.
"""

from __future__ import annotations

from collections.abc import Sequence

from specwire.acceptance import (
    Examination,
    accepts,
    coupled_noise,
    examine_coupled,
    examine_greedy,
    examine_rejection,
    rejection_noise,
    target_token,
)
from specwire.arrays import Array, like, namespace
from specwire.cloud_session import Work
from specwire.qrow import stack_rows
from specwire.request import SessionRequest
from specwire.sampling import History, distribution, greedy_tokens, raw_logprobs
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary


def examine(
    request: SessionRequest,
    work: Work,
    logits: Array,
    history: History | None,
    vocabulary: Vocabulary,
) -> Examination:
    """Examine the n draft tokens of `work` against the target's logits.

    Args:
        request: of the session.
        work: what to examine.
        logits: (n + 1, width) of the target; row i is for draft token i, the last for
            the token after them all. Width ≥ len(vocabulary).
        history: of the first drafted position, for penalties; None where there are none.
        vocabulary: of the target.

    Returns what stays on the device of `logits`; see `Examination`.
    """
    if request.sampling.greedy:
        best = greedy_tokens(
            logits,
            request.sampling,
            history=history,
            drafted=work.tokens,
            size=len(vocabulary),
            padding_ids=vocabulary.padding_ids,
        )
        return examine_greedy(best, like(list(work.tokens), logits, "int64"))
    # On the host, rows of p after the first rejection need not be made.
    how = examine_by_row if str(logits.device) == "cpu" else examine_at_once
    return how(request, work, logits, history, vocabulary)


def examine_at_once(
    request: SessionRequest,
    work: Work,
    logits: Array,
    history: History | None,
    vocabulary: Vocabulary,
) -> Examination:
    """`examine` at a temperature above 0, all rows together: nothing waits for a decision."""
    tokens = like(list(work.tokens), logits, "int64")
    seed, start, n = request.seed, work.start, len(work.tokens)
    p = _p(request, work.tokens, logits, history, vocabulary)
    if request.mode == pb.VERIFICATION_MODE_COUPLED:
        return examine_coupled(p, tokens, coupled_noise(seed, start, n, p))
    accept_noise, draw_noise = (like(u, p, "float64") for u in rejection_noise(seed, start, n))
    q = stack_rows(work.rows, len(vocabulary), p)
    return examine_rejection(p, tokens, q, accept_noise, draw_noise)


def examine_by_row(
    request: SessionRequest,
    work: Work,
    logits: Array,
    history: History | None,
    vocabulary: Vocabulary,
) -> Examination:
    """`examine` at a temperature above 0, row by row up to the one that decides."""
    coupled = request.mode == pb.VERIFICATION_MODE_COUPLED
    by_row = _coupled_by_row if coupled else _rejection_by_row
    return by_row(request, work, logits, history, vocabulary)


def _coupled_by_row(
    request: SessionRequest,
    work: Work,
    logits: Array,
    history: History | None,
    vocabulary: Vocabulary,
) -> Examination:
    none = like([], logits, "int64")
    token = none
    for i in range(len(work.tokens) + 1):
        p = _p(request, work.tokens[:i], logits[i : i + 1], history, vocabulary)
        noise = coupled_noise(request.seed, work.start + i, 0, p)
        _, token = examine_coupled(p, none, noise)
        if i == len(work.tokens) or token != work.tokens[i]:
            break
    return Examination(like(i, logits, "int64"), token)


def _rejection_by_row(
    request: SessionRequest,
    work: Work,
    logits: Array,
    history: History | None,
    vocabulary: Vocabulary,
) -> Examination:
    n = len(work.tokens)
    accept_noise, draw_noise = rejection_noise(request.seed, work.start, n)
    for i in range(n + 1):
        p = _p(request, work.tokens[:i], logits[i : i + 1], history, vocabulary)
        q = stack_rows(work.rows[i : i + 1], len(vocabulary), p)
        tokens = like(list(work.tokens[i : i + 1]), p, "int64")
        if not accepts(p, tokens, q, like(accept_noise[i : i + 1], p, "float64")).all():
            break
    token = target_token(p[0], q.ids.ravel(), q.probs.ravel(), like(draw_noise[i], p, "float64"))
    return Examination(like(i, p, "int64"), token)


def _p(
    request: SessionRequest,
    drafted: Sequence[int],
    logits: Array,
    history: History | None,
    vocabulary: Vocabulary,
) -> Array:
    """p of the last len(logits) positions that `drafted` leads to."""
    before = len(drafted) - len(logits) + 1
    if history is not None and before > 0:
        history = History(history.prompt, [*history.output, *drafted[:before]])
    return distribution(
        logits,
        request.sampling,
        history=history,
        drafted=drafted[max(before, 0) :],
        size=len(vocabulary),
        padding_ids=vocabulary.padding_ids,
    )


def round_logprobs(
    request: SessionRequest, work: Work, logits: Array, outcome: tuple[int, int], size: int
) -> list[pb.TokenLogprobs]:
    """What a session asked to know of each token that a round decided.

    Args:
        request: of the session.
        work: what was examined.
        logits: as in `examine`.
        outcome: accepted drafts and the target's own token, on the host.
        size: of the vocabulary.

    Returns one for each accepted token and the target's own; none if the session asked
    for none, or the target gave no token.
    """
    top, (accepted, token) = request.logprobs, outcome
    if top is None or token < 0:
        return []
    table = raw_logprobs(logits[: accepted + 1], size)
    xp = namespace(table)
    committed = [*work.tokens[:accepted], token]
    result = []
    for row, id_ in zip(table, committed, strict=True):
        best = xp.argsort(-row)[:top].tolist() if top else []
        result.append(
            pb.TokenLogprobs(
                logprob=float(row[id_]),
                top_ids=best,
                top_logprobs=[float(row[i]) for i in best],
            )
        )
    return result
