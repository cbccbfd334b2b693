"""The target's tokenizer and chat template, and the vocabulary that both ends must share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jinja2 import TemplateError

from specwire.errors import BadRequest, ModelError
from specwire.vocabulary import (
    Vocabulary,
    byte_level_piece,
    sentencepiece_piece,
    template_digest,
)

# Special tokens that end a turn or a text whatever the checkpoint's settings say;
# llama.cpp stops at the same ones.
_END_NAMES = frozenset(
    {
        "</s>",
        "<EOT>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<|call|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|im_end|>",
        "<|return|>",
        "[EOS]",
        "[EOT]",
        "_<EOT>",
    }
)
_WORD_MARK = "\u2581"  # how SentencePiece spells a space


class TargetTokenizer:
    """A transformers tokenizer as a `PromptEncoder`, and the source of the vocabulary.

    Special tokens that a text spells out are read as such, as the tokenizer
    does by default: a caller who passes on untrusted text must remove them.
    """

    def __init__(
        self, tokenizer: Any, *, width: int | None = None, end_ids: Iterable[int] = ()
    ) -> None:
        """Wrap a fast tokenizer.

        `width` is how many ids the model knows; tokens beyond it are left out.
        `end_ids` are the checkpoint's own end ids (its generation settings).

        Raises:
            ModelError: the bytes behind the tokens can't be told.
        """
        self._tokenizer = tokenizer
        self._prefix = _prompt_prefix(tokenizer)
        self._vocabulary = _build_vocabulary(tokenizer, self._prefix, width, end_ids)

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens in id order, with their bytes, the end ids and the BOS id."""
        return self._vocabulary

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used."""
        return bool(self._tokenizer.chat_template)

    @property
    def chat_template_digest(self) -> bytes:
        """SHA-256 of the chat template's text; empty if there is none."""
        template = self._tokenizer.chat_template
        return template_digest(template) if isinstance(template, str) else b""

    def encode_text(self, text: str) -> list[int]:
        """Ids of a prompt in plain text, with the model's BOS rule applied once.

        A text that already begins with BOS gets no second one. Tokens that the
        tokenizer would add at the end are left out: the text is to go on.

        Raises:
            BadRequest: the text is not valid Unicode, or spells a token that
                the model does not know.
        """
        _check_unicode(text, "prompt")
        return self._encode(text)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of (role, content) messages through the chat template, ready for an answer.

        Raises:
            BadRequest: the model has no chat template, there are no messages,
                the template refuses them (its words are in the message), or
                they are not valid Unicode.
        """
        if not self.has_chat_template:
            raise BadRequest("this model has no chat template; send the prompt as text instead")
        if not messages:
            raise BadRequest("messages: at least one is needed")
        for index, (role, content) in enumerate(messages):
            _check_unicode(role, f"messages[{index}].role")
            _check_unicode(content, f"messages[{index}].content")
        dicts = [{"role": role, "content": content} for role, content in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                dicts, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise BadRequest(f"messages: the chat template refuses them: {error}") from error
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        ids = _bare_ids(self._tokenizer, text)
        if tuple(ids[: len(self._prefix)]) != self._prefix:
            ids = [*self._prefix, *ids]
        self._vocabulary.check_ids(ids, "prompt")
        return ids


def _bare_ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)


def _prompt_prefix(tokenizer: Any) -> tuple[int, ...]:
    """What the tokenizer puts before a text: BOS for most models that have one, or nothing."""
    bare = _bare_ids(tokenizer, "a")
    full = list(tokenizer("a", verbose=False).input_ids)
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start])
    raise ModelError(f"the tokenizer turns 'a' into {full} and, without special tokens, {bare}")


def _check_unicode(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{what}: character {error.start} is a lone surrogate "
            f"(U+{ord(text[error.start]):04X}), which is not valid Unicode"
        ) from error


def _build_vocabulary(
    tokenizer: Any, prefix: tuple[int, ...], width: int | None, end_ids: Iterable[int]
) -> Vocabulary:
    to_bytes = _piece_rule(tokenizer)
    size = max(tokenizer.get_vocab().values()) + 1
    if width is not None:
        size = min(size, width)
    names = [_canonical(i, n) for i, n in enumerate(tokenizer.convert_ids_to_tokens(range(size)))]
    added = {i: token for i, token in tokenizer.added_tokens_decoder.items() if i < size}
    special = {i for i, token in added.items() if token.special}
    special.update(i for i in tokenizer.all_special_ids if i < size)
    for i, token in added.items():
        if i not in special:
            # GGUF files hold these as they read in a text, so we spell them so too.
            names[i] = token.content.replace(_WORD_MARK, " ")
    while names and names[-1] is None:
        names.pop()
    pieces = [
        b""
        if name is None or i in special
        else (name.encode("utf-8") if i in added else to_bytes(name))
        for i, name in enumerate(names)
    ]
    ends = {*end_ids, *_known_ends(names, special)}
    if tokenizer.eos_token_id is not None:
        ends.add(tokenizer.eos_token_id)
    return Vocabulary(
        names=names,
        pieces=pieces,
        end_ids=frozenset(i for i in ends if 0 <= i < len(names)),
        bos_id=prefix[0] if prefix else None,
    )


def _canonical(id_: int, name: str | None) -> str | None:
    """The spelling of a token; None for a hole, which GGUF files fill with "[PAD123]"."""
    return None if name is None or name == f"[PAD{id_}]" else name


def _known_ends(names: Sequence[str | None], special: Iterable[int]) -> Iterator[int]:
    for i in special:
        if i < len(names) and names[i] in _END_NAMES:
            yield i


def _piece_rule(tokenizer: Any) -> Callable[[str], bytes]:
    """How the bytes of a regular token follow from its spelling, by the tokenizer's decoder."""
    kind = type(tokenizer).__name__
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{kind} is a slow tokenizer; the model needs a tokenizer.json")
    steps = list(_decoder_steps(json.loads(backend.to_str())["decoder"]))
    names = {step["type"] for step in steps}
    if "ByteLevel" in names:
        return byte_level_piece
    replaced = {step["pattern"].get("String") for step in steps if step["type"] == "Replace"}
    if "Metaspace" in names or _WORD_MARK in replaced:
        return sentencepiece_piece
    raise ModelError(
        f"{kind} decodes by {', '.join(sorted(names)) or 'nothing'}; "
        f"only byte-level BPE and SentencePiece vocabularies are supported"
    )


def _decoder_steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _decoder_steps(inner)
    else:
        yield decoder
