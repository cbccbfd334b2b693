"""What a generation writes: committed tokens become text, and the account of it grows."""

from __future__ import annotations

import time
from collections.abc import Sequence

from edge_client.result import Result, Token, read_logprobs
from specwire.committed import CommittedToken, Origin
from specwire.text import TextStream


class Answer:
    """Text and tokens as they are committed.

    Args:
        result: the account, which is filled in.
        stops: texts that end it.
        pieces: the bytes of each token; None where the verifier tells them.
        logprobs: account for log-probabilities too.
        began: when it was asked for, in seconds of time.perf_counter.
    """

    def __init__(
        self,
        result: Result,
        *,
        stops: Sequence[str],
        pieces: Sequence[bytes] | None,
        logprobs: bool,
        began: float,
    ) -> None:
        self.text = TextStream(stops)
        self._result = result
        self._pieces = pieces
        self._logprobs = logprobs
        self._began = began

    def take(self, committed: Sequence[CommittedToken]) -> list[Token]:
        """The same tokens, with their text as far as it may be shown."""
        if committed and not self._result.token_ids:
            self._result.ttft_s = time.perf_counter() - self._began
        tokens = []
        for item in committed:
            piece = item.text or b"" if self._pieces is None else self._pieces[item.id]
            logprobs = read_logprobs(item.logprobs)
            text = self.text.feed(piece)
            tokens.append(Token(item.id, text, item.origin, item.position, logprobs, piece))
            self._account(tokens[-1])
        return tokens

    def finish(self, position: int) -> list[Token]:
        """What was held back because more might have changed it: a token without id, or none."""
        text = self.text.finish()
        if not text:
            return []
        token = Token(None, text, Origin.RUN_AHEAD, position)
        self._account(token)
        return [token]

    def _account(self, token: Token) -> None:
        result = self._result
        result.text += token.text
        if token.id is not None:
            result.token_ids.append(token.id)
            result.origins[token.origin] = result.origins.get(token.origin, 0) + 1
        if self._logprobs and token.logprob is not None:
            result.logprobs = [*(result.logprobs or []), token.logprob]
