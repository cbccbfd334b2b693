"""`edge-client chat`: a conversation in the terminal, line by line."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from edge_client import render
from edge_client.client import EdgeClient
from edge_client.options import GenerateOptions
from specwire.errors import BadRequest, Draining, LinkError, SpecwireError

HELP = """\
/clear  forget the conversation
/exit   leave (so does Ctrl-D)
/help   this
Ctrl-C stops an answer."""


def chat(client: EdgeClient, options: GenerateOptions, *, system: str | None) -> None:
    """Read messages and show answers until the input ends or /exit.

    A refused message or a lost link is told, and the conversation goes on.
    """
    opening = [("system", system)] if system is not None else []
    messages = list(opening)
    if sys.stdin.isatty():
        render.notice("/help lists commands, Ctrl-D leaves")
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
    with asyncio.Runner() as runner:
        try:
            while (line := _read_line()) is not None:
                if line == "/exit":
                    break
                if line == "/clear":
                    messages = list(opening)
                elif line.startswith("/"):
                    render.notice(HELP)
                elif line:
                    messages.append(("user", line))
                    answer = _answer(runner, client, options, messages)
                    if answer:
                        messages.append(("assistant", answer))
                    else:
                        messages.pop()
        finally:
            runner.run(client.aclose())


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        print()
        return ""


def _answer(
    runner: asyncio.Runner,
    client: EdgeClient,
    options: GenerateOptions,
    messages: list[tuple[str, str]],
) -> str:
    """Show the answer; returns what came of it, also if it was stopped."""
    stream = client.stream(messages=messages, options=options)
    colour = render.wants_colour(sys.stdout)
    writer = render.TokenWriter(sys.stdout, colour=colour)

    async def show() -> None:
        async for token in stream:
            writer.write(token)

    try:
        runner.run(show())
    except KeyboardInterrupt:
        writer.end()
        render.notice("stopped")
    except (LinkError, Draining, BadRequest) as error:
        writer.end()
        render.notice(f"no answer: {error}")
    except SpecwireError:
        writer.end()
        raise
    else:
        writer.end()
        render.notice(render.summary(stream.result, colour=colour))
    return stream.result.text
