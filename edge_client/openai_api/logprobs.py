"""Log-probabilities beside the text: which token made which part of it."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from edge_client.result import Token
from specwire.vocabulary import Vocabulary

LOWEST = -9999.0
"""Stands for a probability of 0: JSON has no −∞."""


@dataclass(frozen=True)
class Alternative:
    """A token and its natural-log probability.

    raw: the bytes that it adds to the text; None if the vocabulary is unknown here, or
    the token adds none.
    """

    token: str
    logprob: float
    raw: bytes | None


@dataclass(frozen=True)
class TokenEntry:
    """One token of the output, with those that were likeliest in its place.

    offset: characters of the output before it; where only the text of several tokens
        together is known, before the first of them.
    """

    own: Alternative
    top: tuple[Alternative, ...]
    offset: int


class TokenNames:
    """What tokens are called in answers.

    Without the vocabulary, which comes with the draft, a token is called by its id.
    """

    def __init__(self, vocabulary: Vocabulary | None, end_ids: frozenset[int]) -> None:
        """`end_ids`: the target's, which are no part of an output."""
        self.vocabulary = vocabulary
        self.end_ids = end_ids

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text; none if they are unknown."""
        known = self.vocabulary is not None and token < len(self.vocabulary)
        return self.vocabulary.pieces[token] if self.vocabulary is not None and known else b""

    def alternative(self, token: int, logprob: float) -> Alternative:
        """The token with its name."""
        piece = self.piece(token)
        if piece:
            name = piece.decode("utf-8", "replace")
        elif self.vocabulary is not None and token < len(self.vocabulary):
            name = self.vocabulary.names[token] or ""
        else:
            name = f"token_id:{token}"
        return Alternative(name, max(logprob, LOWEST), piece or None)


class LogprobTrail:
    """Holds entries back until the text they belong to is out.

    Text is held back while it may be the beginning of a stop string, or is no whole
    character yet; an entry comes with the first text that reaches its token.
    """

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._waiting: deque[TokenEntry] = deque()
        self._out = 0  # characters of text that is out
        self._characters = 0  # whole ones of all tokens so far
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: Token) -> list[TokenEntry]:
        """Take a token as it is delivered; returns the entries that go with its text."""
        if token.id is not None:
            self._note(token.id, token)
        self._out += len(token.text)
        released = []
        while self._waiting and self._waiting[0].offset < self._out:
            released.append(self._waiting.popleft())
        return released

    def finish(self, *, by_stop_string: bool) -> list[TokenEntry]:
        """The entries left at the end; those of tokens inside a stop string are dropped."""
        left = [] if by_stop_string else list(self._waiting)
        self._waiting.clear()
        return left

    def _note(self, id_: int, token: Token) -> None:
        if token.logprob is not None and id_ not in self._names.end_ids:
            own = self._names.alternative(id_, token.logprob.logprob)
            top = tuple(self._names.alternative(i, p) for i, p in token.logprob.top)
            offset = self._characters + self._broken_by(token.piece)
            self._waiting.append(TokenEntry(own, top, offset))
        self._characters += len(self._decoder.decode(token.piece))

    def _broken_by(self, piece: bytes) -> bool:
        # The beginning of a character that does not go on becomes one of its own, U+FFFD.
        return bool(piece and self._decoder.getstate()[0]) and piece[0] & 0xC0 != 0x80


def chat_logprobs(entries: Sequence[TokenEntry]) -> dict[str, object]:
    """The shape of chat completions."""
    return {
        "content": [
            {**_chat_entry(entry.own), "top_logprobs": [_chat_entry(a) for a in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_entry(item: Alternative) -> dict[str, object]:
    raw = list(item.raw) if item.raw is not None else None
    return {"token": item.token, "logprob": item.logprob, "bytes": raw}


def completion_logprobs(entries: Sequence[TokenEntry]) -> dict[str, object]:
    """The shape of completions: four lists; the likeliest include the token itself."""
    return {
        "tokens": [_completion_name(entry.own) for entry in entries],
        "token_logprobs": [entry.own.logprob for entry in entries],
        "top_logprobs": [
            {_completion_name(a): a.logprob for a in (*entry.top, entry.own)} for entry in entries
        ],
        "text_offset": [entry.offset for entry in entries],
    }


def _completion_name(item: Alternative) -> str:
    # Here tokens are keys, so those that are no whole characters must differ by name.
    if item.raw is None:
        return item.token
    try:
        return item.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in item.raw)
