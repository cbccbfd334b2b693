"""The conversation from its first line to its end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from edge_client import render
from edge_client.chat import terminal
from edge_client.chat.answer import Answer, Watch
from edge_client.chat.commands import KEYS, ChatState, Outcome, expanded, help_lines, interpret
from edge_client.chat.conversation import Conversation
from edge_client.chat.history import FileHistory, history_file
from edge_client.chat.lines import LineReader
from edge_client.chat.prompt import Leave, Prompt
from edge_client.chat.signals import handled
from edge_client.chat.status import account
from edge_client.chat.view import PlainView, TerminalView, View
from edge_client.client import EdgeClient
from edge_client.options import GenerateOptions, Mode
from edge_client.progress import Teller
from edge_client.result import Result
from edge_client.retry import RetryPolicy
from specwire.errors import BadRequest, Draining, Exhausted, LinkError, SpecwireError

T = TypeVar("T")

CLOSE_S = 1.5
"""How long the end waits for the link and the models."""
NO_HISTORY = "none"
_ONCE = RetryPolicy(attempts=1, total_s=10.0)
_EXIT_INTERRUPTED = 130


def chat(
    client: EdgeClient,
    options: GenerateOptions,
    *,
    system: str | None,
    server: str,
    teller: Teller,
    history: str | None = None,
) -> int:
    """Read messages and show answers until the input ends or /exit; returns the exit code.

    On a terminal whatever goes wrong with a message is told, and the conversation goes on. A
    refusal at the start that won't pass, of a token or a protocol version, ends it.

    Args:
        client: whose notices go through `teller`. It is closed at the end.
        options: of the first answer.
        system: a system message.
        server: what to call the verifier.
        teller: of notices.
        history: a file for inputs, "none" for none, None for the usual place.

    Raises:
        BadRequest: standard input is closed.
        SpecwireError: the verifier refused this client: at the start or, without a terminal,
            at any time.
    """
    if sys.stdin is None:
        raise BadRequest("chat reads messages from standard input, and that is closed")
    before = terminal.attributes()
    talk = Chat(client, ChatState(Conversation(system), options), server, teller, history)
    try:
        return asyncio.run(talk.run())
    except OSError:
        if talk.code is None:
            raise
        return talk.code  # the terminal is gone
    finally:
        terminal.apply(before)


class Chat:
    """One conversation with a client; see `chat`."""

    def __init__(
        self,
        client: EdgeClient,
        state: ChatState,
        server: str,
        teller: Teller,
        history: str | None,
    ) -> None:
        self._client = client
        self._state = state
        self._server = server
        self._teller = teller
        self._before = terminal.attributes()
        self._colour = render.wants_colour(sys.stdout)
        self._screen = terminal.steerable(sys.stdout)  # cursor movements are understood
        self._prompt: Prompt | None = None
        self._lines = LineReader(sys.stdin.fileno())
        if self._screen and sys.stdin.isatty():
            self._prompt = Prompt(self._history(history), colour=self._colour)
        self._piped = self._prompt is None and not sys.stdin.isatty()
        self._main: asyncio.Task[Any] | None = None
        self._answer: asyncio.Task[None] | None = None
        self._begun = False
        self._warned = False
        self._told: set[str] = set()
        self.code: int | None = None
        """Of the exit; None while nothing has ended the conversation."""

    def _history(self, chosen: str | None) -> FileHistory | None:
        if chosen == NO_HISTORY:
            return None
        path = history_file() if chosen is None else expanded(chosen)
        return FileHistory(path, render.notice) if path is not None else None

    async def run(self) -> int:
        """Talk to the end; see `chat`."""
        self._main = asyncio.current_task()
        give_up = partial(terminal.give_up, self._before)
        with handled(self._interrupt, self._resume, self._leave, give_up):
            try:
                await self._begin()
                await self._talk()
            except asyncio.CancelledError:
                if self.code is None:
                    raise
            finally:
                self._main = None  # nothing hastens the end
                await self._close()
        return self.code or 0

    async def _begin(self) -> None:
        if self._prompt is None:
            self._lines.start()
            return
        if self._state.options.mode is not Mode.STREAM:
            with contextlib.suppress(SpecwireError):  # told when an answer needs the draft
                await self._wait("loading the draft model", self._client.load_draft())
        try:
            served = await self._wait(f"connecting to {self._server}", self._client.describe(_ONCE))
        except (LinkError, Draining, Exhausted) as error:
            render.notice(f"{error}; each message tries again")
        else:
            self._state.model, self._state.context = served.model, served.limits.context
            render.notice(f"{self._state.model} at {self._server}, {self._state.context} tokens")
        render.notice("/help lists commands and keys, Ctrl-D leaves")
        self._begun = True

    async def _wait(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        watch = Watch(self._view(), what)
        with terminal.unseen_keys():
            async with watch(self._teller):
                return await work

    # ---------------------------------------------------------------- talking

    async def _talk(self) -> None:
        while True:
            try:
                text = await self._read()
            except EOFError:
                return
            except Leave:
                self.code = _EXIT_INTERRUPTED
                return
            self._warned = self._warned and self._piped
            outcome = interpret(self._state, text.strip())
            self._say(outcome)
            if outcome.leave:
                return
            if outcome.ask is not None:
                await self._ask(outcome.ask)

    async def _read(self) -> str:
        if self._prompt is not None:
            return await self._prompt.ask()
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        return await self._lines.next()

    def _say(self, outcome: Outcome) -> None:
        if outcome.help:
            for line in help_lines():
                render.notice(line)
            render.notice(KEYS)
            for line in render.legend(colour=self._colour):
                print(line, file=sys.stderr, flush=True)
        for line in outcome.say:
            render.notice(line)

    async def _ask(self, user: str) -> None:
        state = self._state
        messages = state.conversation.messages(user)
        answer = Answer(self._client, messages, state.options, self._view(), server=self._server)
        stopped = False
        try:
            stopped = not await self._stoppable(answer.show(self._teller))
            if stopped:
                again = "; Ctrl-C again ends the chat" if self._piped else ""
                room = "\n" if self._prompt is not None else ""
                render.notice(f"stopped{again}{room}")
            else:
                self._warned = False
                self._account(answer.result)
        except SpecwireError as error:
            stopped = True
            self._explain(error, answer.result)
            if self._prompt is None and not isinstance(
                error, (LinkError, Draining, BadRequest, Exhausted)
            ):
                raise
        finally:
            state.tally.add(answer.result)
            kept = state.conversation.answered(user, answer.result.text, stopped=stopped)
            if kept and self.code is None:
                render.notice("the earlier answer stays part of the conversation")

    async def _stoppable(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the work came to its end, rather than being stopped by Ctrl-C."""
        self._answer = asyncio.ensure_future(work)
        try:
            with terminal.unseen_keys(self._prompt is not None):
                await self._answer
        except asyncio.CancelledError:
            if self.code is not None or (self._main is not None and self._main.cancelling()):
                raise
            return False
        finally:
            self._answer = None
        return True

    def _account(self, result: Result) -> None:
        if self._prompt is not None:
            render.notice(account(result) + "\n")
        else:
            render.account(result)
        if result.finish_reason == "length" and len(result.token_ids) < (
            self._state.options.max_tokens
        ):
            held = result.prompt_tokens + len(result.token_ids)
            render.notice(
                f"the context is full ({held} tokens), so the answer ends here: /clear forgets "
                "the conversation, /undo takes back its last message"
            )

    def _explain(self, error: SpecwireError, result: Result) -> None:
        what = "the answer broke off" if result.text else "no answer"
        render.notice(f"{what}: {error}")
        if isinstance(error, BadRequest) and "shorten" in str(error):
            if self._state.conversation.turns:
                render.notice(
                    "the conversation and this message don't fit: /clear forgets the "
                    "conversation, /undo takes back its last message; nothing is lost yet"
                )
        elif self._prompt is not None and not result.text:
            render.notice("/retry asks again")

    def _view(self) -> View:
        if self._screen:
            mode = self._state.options.mode
            return TerminalView(sys.stdout, colour=self._colour, mode=mode, before=self._once)
        return PlainView()

    def _once(self, line: str) -> None:
        """A notice that holds for each answer is told with the first."""
        if line not in self._told:
            self._told.add(line)
            render.notice(line)

    # ----------------------------------------------------------------- ending

    def _interrupt(self) -> None:
        if self._answer is not None and not (self._piped and self._warned):
            self._answer.cancel()
            self._warned = self._piped  # where nobody types, the next message comes by itself
        elif self._prompt is not None and self._prompt.asks:
            self._prompt.interrupt()
        elif not self._warned and self._prompt is None and sys.stdin.isatty():
            self._warned = True
            render.notice("\nCtrl-C again or Ctrl-D leaves")
        elif not self._begun:  # on a terminal only a prompt leaves, once there has been one
            self._leave(_EXIT_INTERRUPTED)

    def _resume(self) -> None:
        # The shell has given the terminal back as it was when the program began.
        if self._answer is not None and self._prompt is not None:
            terminal.apply(terminal.silent(self._before))

    def _leave(self, code: int) -> None:
        if self._main is not None:
            self.code = code
            self._main.cancel()

    async def _close(self) -> None:
        """Close the client; a model that can't be left soon ends with the process."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._client.aclose()
        except TimeoutError:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            terminal.give_up(self._before, self.code or 0)
