"""Where messages are typed: editing, several lines, history, completion."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth, create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from edge_client.chat.commands import COMMANDS
from edge_client.chat.settings import SETTINGS

_AGAIN = "Ctrl-C again or Ctrl-D leaves"


class Leave(Exception):
    """Ctrl-C, twice in a row."""


class Prompt:
    """Asks for a message on the terminal.

    Enter sends. Alt-Enter, or Enter after a backslash, begins a new line; pasted lines
    stay together. Ctrl-C clears what is typed.

    Args:
        history: earlier inputs; None remembers those of this run alone.
        colour: whether it may colour.
    """

    def __init__(self, history: History | None, *, colour: bool) -> None:
        self._leaving = False
        output = create_output(sys.stdout)
        if isinstance(output, Vt100_Output):
            # A terminal's answers to questions would be taken for keys, were it slow.
            output.enable_cpr = False
        self._session: PromptSession[str] = PromptSession(
            FormattedText([("bold", "> ")]),
            multiline=True,
            prompt_continuation=FormattedText([("", "… ")]),
            placeholder=lambda: FormattedText([("italic", _AGAIN if self._leaving else "")]),
            history=history or InMemoryHistory(),
            completer=ChatCompleter(),
            complete_while_typing=False,
            enable_suspend=True,
            key_bindings=self._bindings(),
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            output=output,
        )
        self._session.default_buffer.on_text_changed += self._typed

    async def ask(self) -> str:
        """What was typed.

        Raises:
            EOFError: Ctrl-D. Leave: Ctrl-C, twice.
        """
        self._leaving = False
        text = await self._session.prompt_async(handle_sigint=False)
        # Bytes that are no text come as lone surrogates.
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    @property
    def asks(self) -> bool:
        """Whether something is being typed now."""
        return self._session.app.is_running

    def interrupt(self) -> None:
        """As if Ctrl-C had been pressed."""
        self._session.app.key_processor.send_sigint()

    def _typed(self, buffer: Buffer) -> None:
        if buffer.text:
            self._leaving = False

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        typing = has_focus(DEFAULT_BUFFER)

        @bindings.add("enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            before = buffer.document.current_line_before_cursor
            backslashes = len(before) - len(before.rstrip("\\"))
            if backslashes % 2 and buffer.document.is_cursor_at_the_end_of_line:
                buffer.delete_before_cursor()
                buffer.newline(copy_margin=False)
            else:
                buffer.validate_and_handle()

        @bindings.add("escape", "enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @bindings.add("c-c", filter=typing)
        @bindings.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            if self._leaving:
                event.app.exit(exception=Leave(), style="class:aborting")
                return
            event.app.layout.focus(DEFAULT_BUFFER)
            self._session.default_buffer.reset()
            self._leaving = True

        return bindings


class ChatCompleter(Completer):
    """Completes commands, the names and values of settings, and files."""

    def __init__(self) -> None:
        self._files = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """What the text before the cursor could go on as."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, rest = text.partition(" ")
        if not space:
            yield from _beginning(name, COMMANDS)
        elif name in ("/save", "/load"):
            with contextlib.suppress(OSError):
                yield from self._files.get_completions(Document(rest), complete_event)
        elif name == "/set":
            setting, space, value = rest.partition(" ")
            if not space:
                yield from _beginning(setting, SETTINGS)
            elif setting in SETTINGS:
                yield from _beginning(value, SETTINGS[setting].choices)


def _beginning(word: str, known: Iterable[str]) -> Iterable[Completion]:
    for item in known:
        if item.startswith(word):
            yield Completion(item, start_position=-len(word))
