"""The `edge-client` command. Exit codes are in `arguments.EXIT_CODES`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import cast

from edge_client import render
from edge_client.arguments import credentials_from, options_from, parse
from edge_client.client import EdgeClient
from edge_client.drafter import LOADING
from edge_client.options import GenerateOptions
from edge_client.progress import Spinner, Teller
from edge_client.result import Result, Token
from edge_client.screen import Screen
from specwire.errors import BadRequest, Draining, LinkError, SpecwireError, Unsupported
from specwire.standard_output import take_any_text

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130

_CLOSED = f"edge-client: standard output or error is closed; send it to {os.devnull} instead"
_ENDS_INPUT = "Ctrl-Z and Enter end it" if sys.platform == "win32" else "Ctrl-D ends it"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    if sys.stdout is None or sys.stderr is None:
        print(_CLOSED, file=sys.stderr or sys.stdout)
        return EXIT_USAGE
    take_any_text()
    args = parse(argv)
    try:
        options = options_from(args)
        if args.command == "doctor":
            return _doctor(args, options)
        teller = Teller()
        notify = render.seldom(render.notice) if args.command == "serve" else teller
        client = _client(args, notify)
        if args.command == "chat":
            return _chat(client, args, options, teller)
        if args.command == "serve":
            _serve(client, args, options, notify)
        else:
            asyncio.run(_generate(client, args, _prompt(args), options, teller))
    except KeyboardInterrupt:
        _leave_what_loads()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SpecwireError as error:
        print(render.shown(f"edge-client: {error}", sys.stderr), file=sys.stderr)
        return _exit_code(error)
    except OSError as error:  # of our own output; all else has an error of ours
        print(f"edge-client: can't write the output: {error.strerror}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


def _leave_what_loads() -> None:
    """End the process here if llama.cpp is at work in a thread, where nothing can stop it.

    In an orderly end it would go on for a while, and tell about it.
    """
    if any(thread.name == LOADING for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(EXIT_INTERRUPTED)


def _client(args: argparse.Namespace, notify: Callable[[str], None]) -> EdgeClient:
    draft = None if args.draft == "none" else args.draft
    if args.command == "local":
        return EdgeClient.local(
            args.target,
            draft=draft,
            drafts=args.drafts,
            threads=args.threads,
            context=args.context,
            notify=notify,
        )
    return EdgeClient(
        args.server,
        draft=draft,
        drafts=args.drafts,
        threads=args.threads,
        credentials=credentials_from(args, os.environ),
        notify=notify,
    )


def _doctor(args: argparse.Namespace, options: GenerateOptions) -> int:
    from edge_client.doctor.run import Doctor

    doctor = Doctor(
        args.server,
        None if args.draft == "none" else args.draft,
        args.drafts,
        threads=args.threads,
        credentials=credentials_from(args, os.environ),
        options=options,
    )
    return doctor.examine(as_json=args.json)


def _chat(
    client: EdgeClient, args: argparse.Namespace, options: GenerateOptions, teller: Teller
) -> int:
    try:
        from edge_client.chat.app import chat
    except ModuleNotFoundError as error:
        raise _missing("chat", error) from error
    return chat(
        client,
        options,
        system=args.system,
        server=", ".join(args.server),
        teller=teller,
        history=args.history,
    )


def _missing(command: str, error: ModuleNotFoundError) -> Unsupported:
    return Unsupported(
        f"{command} needs the package {error.name}; install it with: pip install 'specwire[edge]'"
    )


def _serve(
    client: EdgeClient,
    args: argparse.Namespace,
    options: GenerateOptions,
    notify: Callable[[str], None],
) -> None:
    try:
        from edge_client.openai_api.serve import serve
    except ModuleNotFoundError as error:
        raise _missing("serve", error) from error
    from edge_client.openai_api.settings import ServeSettings, read_key, split_address

    host, port = split_address(args.listen)
    settings = ServeSettings(
        host,
        port,
        server=", ".join(args.server),
        key=read_key(args.api_key_file, os.environ),
        names=tuple(args.allow_host),
        origins=tuple(args.allow_origin),
        insecure=args.insecure,
        sessions=args.sessions,
    )
    serve(client, settings, options, notify)


def _exit_code(error: SpecwireError) -> int:
    if isinstance(error, BadRequest):
        return EXIT_USAGE
    if isinstance(error, (LinkError, Draining)):
        return EXIT_UNREACHABLE
    return EXIT_REFUSED


def _prompt(args: argparse.Namespace) -> str:
    """The prompt as text. Read before an event loop runs, for that would hold Ctrl-C back."""
    if args.prompt is not None and args.prompt != "-":
        return str(args.prompt)
    if sys.stdin is None:
        raise BadRequest("there is no prompt, and standard input is closed; give one as argument")
    if sys.stdin.isatty():
        render.notice(f"type the prompt; {_ENDS_INPUT}")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the prompt on standard input is no text: {error}") from error


async def _generate(
    client: EdgeClient,
    args: argparse.Namespace,
    prompt: str,
    options: GenerateOptions,
    teller: Teller,
) -> None:
    if args.logprobs is not None and not args.json:
        raise BadRequest("--logprobs needs --json: text alone does not show them")
    colour = render.wants_colour(sys.stdout)
    screen = Screen(sys.stdout, render.notice) if colour and not args.json else None
    provisional = screen.provisional if screen is not None else None
    if args.chat:
        system = [("system", args.system)] if args.system is not None else []
        messages = [*system, ("user", prompt)]
        stream = client.stream(messages=messages, options=options, provisional=provisional)
    elif args.system is not None:
        raise BadRequest("--system needs --chat: a plain prompt has no system message")
    else:
        stream = client.stream(prompt, options=options, provisional=provisional)
    writer = render.TokenWriter(screen or sys.stdout, colour=colour, terminal=sys.stdout.isatty())
    # Who reads our output may leave: then the session must end before the client does.
    tokens = cast("AsyncGenerator[Token, None]", aiter(stream))
    waiting = Spinner(
        lambda: "waiting for the first token" if stream.status is not None else "getting ready",
        quiet=args.quiet,
    )
    async with client, contextlib.aclosing(tokens), waiting.shown(teller):
        try:
            with contextlib.ExitStack() as notices:
                async for token in tokens:
                    waiting.hide()
                    if screen is not None and screen.untouched:
                        notices.enter_context(teller.to(screen.notice))
                    if not args.json:
                        writer.write(token)
        finally:
            if screen is not None:
                screen.provisional("")
            writer.end()
            if args.record is not None:
                _write_record(args.record, stream.result)
    if args.json:
        render.print_json(stream.result.to_json())
    elif not args.quiet:
        render.account(stream.result)


def _write_record(path: Path, result: Result) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(item) + "\n" for item in result.record)
    except OSError as error:
        raise BadRequest(f"can't write the record {path}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
