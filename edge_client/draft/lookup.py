"""Prompt lookup: drafts copied from earlier in the text, without a model.

Where the last few tokens occurred before, what followed them then is a good guess
now: in summaries, code edits and answers that quote (Saxena 2023, prompt lookup
decoding). Which place is copied depends on earlier tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_client.draft.source import Drafted, DraftSource, interrupt
from specwire.qrow import point_row

MATCH = 3
"""Tokens that must agree for lookup alone to guess."""
GOOD_MATCH = 6
"""Tokens that must agree for lookup to be preferred to a model."""
_LONGEST = 16
_FEW_TRIES = 4
_POOR = 0.5


class Index:
    """Where each run of `MATCH` tokens ended last, for a text that grows and is cut back."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def follow(self, tokens: Sequence[int]) -> int:
        """Make `tokens` the text: forget what differs from before, take in what is new.

        Returns how many were new.
        """
        held = self._tokens
        keep = min(len(held), len(tokens))
        if held[:keep] != list(tokens[:keep]):
            keep = next(i for i in range(keep) if held[i] != tokens[i])
        for end in range(len(held), max(keep, MATCH - 1), -1):
            self._ends[tuple(held[end - MATCH : end])].pop()
        del held[keep:]
        for end in range(keep + 1, len(tokens) + 1):
            held.append(tokens[end - 1])
            if end >= MATCH:
                self._ends.setdefault(tuple(held[end - MATCH :]), []).append(end)
        return len(tokens) - keep

    def match(self) -> tuple[int, int]:
        """(token that followed, tokens that agree) for the latest earlier match; (−1, 0) if none.

        At most `_LONGEST` tokens are compared.
        """
        tokens = self._tokens
        ends = self._ends.get(tuple(tokens[-MATCH:]), ())
        if len(tokens) < MATCH or len(ends) < 2:
            return -1, 0
        end, length = ends[-2], MATCH
        while length < min(_LONGEST, end) and tokens[end - length - 1] == tokens[-length - 1]:
            length += 1
        return tokens[end], length


class LookupSource:
    """Drafts by lookup alone; `coupled` sessions get no q."""

    def __init__(self, *, coupled: bool) -> None:
        self._coupled = coupled
        self._index = Index()

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        """The token that followed the latest match of the prefix's end; None without one."""
        fresh = self._index.follow(prefix)
        token, length = self._index.match()
        if length < MATCH:
            return None
        # Longer matches are surer; what they are worth in this text is learnt elsewhere.
        confidence = length / (length + 1)
        return Drafted(token, None if self._coupled else point_row(token), confidence, fresh)

    def close(self) -> None:
        """Nothing is held."""


class CombinedSource:
    """Lookup where it matches well, a model otherwise.

    In sessions whose output depends on the drafts, this must not be used while the cloud
    runs ahead: lookup is quicker than a model, and how soon a draft token arrives would
    depend on which tokens were drawn before it.
    """

    def __init__(self, model: DraftSource, *, coupled: bool) -> None:
        self._model = model
        self._lookup = LookupSource(coupled=coupled)
        self._chain = 0
        self._guesses: dict[int, int] = {}  # of this chain, by position
        self._right = self._tried = 0

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        """The draft token that follows `prefix`; None where neither source has one."""
        if chain != self._chain:
            self._chain = chain
            self._settle(prefix)
        guess = self._lookup.next(prefix, chain)
        if guess is not None and guess.confidence >= GOOD_MATCH / (GOOD_MATCH + 1):
            self._guesses[len(prefix)] = guess.token
            if self._tried < _FEW_TRIES or self._right > _POOR * self._tried:
                return guess
        return self._model.next(prefix, chain)

    def _settle(self, committed: Sequence[int]) -> None:
        """A new chain stands on committed tokens: what did lookup know of them?

        It is asked also while it is not believed, so that it can win trust back.
        """
        for position, guess in self._guesses.items():
            if position < len(committed):
                self._tried += 1
                self._right += committed[position] == guess
        self._guesses.clear()
        if self._tried > 4 * _FEW_TRIES:
            self._tried //= 2
            self._right //= 2

    def interrupt(self) -> None:
        """Cut the model short."""
        interrupt(self._model)

    def close(self) -> None:
        """Close the model."""
        self._model.close()
