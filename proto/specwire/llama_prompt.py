"""Prompts through a GGUF file's own tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn, Protocol

from specwire.errors import BadRequest
from specwire.vocabulary import Vocabulary, template_digest


class PromptModel(Protocol):
    """What a model in llama.cpp tells about its texts."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens in id order."""

    @property
    def chat_template(self) -> str | None:
        """The text of the chat template, None if there is none."""

    def special_tokens(self) -> dict[str, str]:
        """Spellings by the names that chat templates call them."""

    def tokenize(self, raw: bytes) -> list[int]:
        """Ids of a text in UTF-8, special tokens that it spells out read as such."""


class LlamaEncoder:
    """A GGUF model's tokenizer and chat template as a `PromptEncoder`.

    Special tokens that a text spells out are read as such: a caller who passes on
    untrusted text must remove them.

    Args:
        model: whose texts they are.
        jinja: the module `jinja2`, its `ext` and `sandbox` imported. llama.cpp's own
            chat templates are a list of known ones, which a file need not be among.
    """

    def __init__(self, model: PromptModel, jinja: Any) -> None:
        self._model = model
        self._jinja = jinja

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used."""
        return bool(self._model.chat_template)

    @property
    def chat_template_digest(self) -> bytes:
        """SHA-256 of the chat template's text; empty if there is none."""
        text = self._model.chat_template
        return template_digest(text) if text else b""

    def encode_text(self, text: str) -> list[int]:
        """Ids of a prompt in plain text, with the model's BOS rule applied once.

        A text that already begins with BOS gets no second one. Nothing is added at
        the end: the text is to go on.

        Raises:
            BadRequest: the text is not valid Unicode, or spells a token that
                the model does not know.
        """
        return self._encode(_utf8(text, "prompt"))

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
            _utf8(role, f"messages[{index}].role")
            _utf8(content, f"messages[{index}].content")
        try:
            text = self._template.render(
                messages=[{"role": role, "content": content} for role, content in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._model.special_tokens(),
            )
        except (self._jinja.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise BadRequest(f"messages: the chat template refuses them: {error}") from error
        return self._encode(_utf8(text, "the rendered messages"))

    @cached_property
    def _template(self) -> Any:
        return _environment(self._jinja).from_string(self._model.chat_template or "")

    def _encode(self, raw: bytes) -> list[int]:
        vocabulary = self._model.vocabulary
        ids = self._model.tokenize(raw)
        if vocabulary.bos_id is not None and ids[:1] != [vocabulary.bos_id]:
            ids.insert(0, vocabulary.bos_id)
        vocabulary.check_ids(ids, "prompt")
        return ids


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{what}: character {error.start} is a lone surrogate "
            f"(U+{ord(text[error.start]):04X}), which is not valid Unicode"
        ) from error


def _environment(jinja: Any) -> Any:
    """Jinja as chat templates expect it: the settings and names are transformers'."""

    def refuse(message: str) -> NoReturn:
        raise jinja.TemplateError(message)

    environment = jinja.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation_tag(jinja), jinja.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    # Jinja's own escapes HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _generation_tag(jinja: Any) -> type:
    """`{% generation %}`, which marks what a model is trained on: here it prints its body."""

    def parse(_: Any, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja.nodes.Scope(body).set_lineno(line)

    return type("Generation", (jinja.ext.Extension,), {"tags": {"generation"}, "parse": parse})
