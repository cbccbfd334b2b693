"""The `cloud-verifier` command.

Exit codes: 0 stopped as asked, 1 a model, file or address can't be used, 2 wrong
arguments or settings, 130 and 143 stopped by SIGINT and SIGTERM before it was ready.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cloud_verifier import logs
from cloud_verifier.configuration import Loaded, load_settings
from cloud_verifier.interrupts import leaving_on_signals
from cloud_verifier.options import OPTIONS, Option
from cloud_verifier.settings import check_exposure, log_level_number
from cloud_verifier.tokens import add_token, read_tokens, revoke_token
from specwire import __version__
from specwire.errors import BadRequest, SpecwireError
from specwire.standard_output import take_any_text

EXIT_UNUSABLE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    take_any_text()
    args = _parser().parse_args(argv)
    try:
        return _token(args) if args.command == "token" else _serve(args)
    except SpecwireError as error:
        print(f"cloud-verifier: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _serve(args: argparse.Namespace) -> int:
    flags = {o.key: getattr(args, o.key) for o in OPTIONS}
    if args.verbose:
        flags["log_level"] = "debug"
    try:
        loaded: Loaded = load_settings({**flags, "config": args.config}, os.environ)
        warning = check_exposure(loaded.settings)
    except BadRequest as error:
        print(f"cloud-verifier: {error}", file=sys.stderr)
        return EXIT_USAGE
    settings = loaded.settings
    with leaving_on_signals() as reload:
        logs.configure(settings.log_format, log_level_number(settings))
        logs.notice(loaded.describe())
        if warning is not None:
            logs.notice(warning, level=logging.WARNING)
        # This takes seconds to import, and needs packages that `token` does not.
        from cloud_verifier import serve

        access = serve.access_of(settings)  # before the model, which takes longer to load
        asyncio.run(serve.serve(settings, serve.load(settings), access, reload))
    return 0


def _token(args: argparse.Namespace) -> int:
    path = args.file or os.environ.get("SPECWIRE_TOKENS")
    if not path:
        print("cloud-verifier: give --file or set SPECWIRE_TOKENS", file=sys.stderr)
        return EXIT_USAGE
    file = Path(path).expanduser()
    if args.action == "new":
        print(add_token(file, args.name))
        print(
            f"This is {args.name}'s token; {file} keeps only its hash, so copy it now.\n"
            "A running verifier takes it after SIGHUP.",
            file=sys.stderr,
        )
    elif args.action == "revoke":
        revoke_token(file, args.name)
        print("A running verifier takes the file after SIGHUP.", file=sys.stderr)
    else:
        for name in read_tokens(file).names:
            print(name)
    return 0


# ---------------------------------------------------------------- command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cloud-verifier", description="Verify draft tokens with a large target model."
    )
    parser.add_argument("--version", action="version", version=f"specwire {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_token(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve a target model over gRPC",
        description="Serve a target model over gRPC. Prints one line when it is ready.",
        epilog="Each option may also be set by a variable, --tls-cert by SPECWIRE_TLS_CERT, or in "
        "the configuration file, as tls_cert. Flags come first, then variables, then the file.",
    )
    serve.add_argument(
        "--config", metavar="FILE", help="TOML file with settings (or SPECWIRE_CONFIG)"
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        if option.group not in groups:
            groups[option.group] = serve.add_argument_group(option.group)
        _add_option(groups[option.group], option)
    serve.add_argument("-v", "--verbose", action="store_true", help="the same as --log-level debug")


def _add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    shown = "" if option.default is None or "default" in option.help else f" ({option.default})"
    text = option.help.replace("%", "%%")
    if isinstance(option.default, bool):
        group.add_argument(
            option.flag, dest=option.key, action="store_const", const="true", help=text
        )
    else:
        group.add_argument(option.flag, dest=option.key, metavar=option.metavar, help=text + shown)


def _add_token(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    token = commands.add_parser(
        "token",
        help="make, list and revoke clients' tokens",
        description="Make, list and revoke the tokens that clients show.",
    )
    actions = token.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("new", "make a token, print it once, and append its hash to the file"),
        ("list", "the clients that have one"),
        ("revoke", "take a client's token out of the file"),
    ):
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name != "list":
            action.add_argument("--name", required=True, help="of the client")
        action.add_argument("--file", metavar="FILE", help="token file (or SPECWIRE_TOKENS)")


if __name__ == "__main__":
    sys.exit(main())
