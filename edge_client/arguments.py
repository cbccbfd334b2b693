"""The command line of `edge-client`, and what it means."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from edge_client.credentials import Credentials
from edge_client.drafter import DraftFrom
from edge_client.options import GenerateOptions, Mode, Verification
from specwire import __version__
from specwire.errors import BadRequest
from specwire.sampling import SamplingParams

EXIT_CODES = """\
exit codes:
  0    the text is complete, or serve was stopped
  1    the verifier refused, or a model or address can't be used
  2    wrong arguments, or a value out of range
  3    the verifier can't be reached, or the link was lost for good
  130  interrupted
"""

DEFAULT_SERVER = "127.0.0.1:7710"
DEFAULT_DRAFT = "builtin:smollm2-q2"
DEFAULT_TEMPERATURE = 0.7
DEFAULT_LISTEN = "127.0.0.1:8010"
DEFAULT_SESSIONS = 8


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; exits with 2 and a message if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="edge-client",
        description="Generate with a target model in the cloud and a draft model here.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specwire {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_output(_command(commands, "generate", "continue a prompt, or answer it with --chat"))
    _add_chat(_command(commands, "chat", "talk with the target"))
    _add_local(commands)
    _add_serve(commands)
    _add_doctor(commands)
    args = parser.parse_args(argv)
    if "server" in args and args.server is None:  # appending would keep a default beside others
        args.server = [DEFAULT_SERVER]
    return args


def _add_output(generate: argparse.ArgumentParser) -> None:
    generate.add_argument(
        "prompt", nargs="?", help="text; read from standard input if absent or '-'"
    )
    generate.add_argument(
        "--chat",
        action="store_true",
        help="send the prompt as a user's message through the target's chat template",
    )
    generate.add_argument("--json", action="store_true", help="print one JSON object instead")
    generate.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="in the JSON object, each token's log-probability and the N likeliest; needs --json",
    )
    generate.add_argument("--quiet", action="store_true", help="no account at the end")
    generate.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write what was measured of draft, target and agreement, for netsim (JSON lines)",
    )


def _add_chat(chat: argparse.ArgumentParser) -> None:
    chat.add_argument(
        "--history",
        metavar="FILE",
        help="keeps inputs for the next time, or none (default: chat-history in the user's "
        "state folder)",
    )


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str
) -> argparse.ArgumentParser:
    parser = _models_command(commands, name, about)
    _add_offline_tail(parser)
    parser.add_argument("--system", help="a system message, with chat")
    _add_sampling(parser.add_argument_group("how to draw"))
    return parser


def _add_local(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _parser(commands, "local", "as generate, with the target on this machine too")
    parser.add_argument(
        "--target", required=True, metavar="MODEL", help="a GGUF file, or builtin:smollm2"
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="most tokens of prompt and output (default: 4096, or what the target has)",
    )
    _add_draft(parser, "of each model; they take turns (default: fast cores)")
    _add_output(parser)
    parser.add_argument("--system", help="a system message, with --chat")
    _add_generation(parser.add_argument_group("how to draft and verify"))
    _add_sampling(parser.add_argument_group("how to draw"))


def _models_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str
) -> argparse.ArgumentParser:
    """A command that brings a verifier and a draft together."""
    parser = _parser(commands, name, about)
    parser.add_argument(
        "--server",
        action="append",
        metavar="HOST:PORT",
        help="a verifier; repeat for others that take over where those before fail "
        f"(default: {DEFAULT_SERVER})",
    )
    _add_draft(parser, "of the draft model (default: fast cores)")
    _add_credentials(parser.add_argument_group("how to reach the verifier safely"))
    _add_generation(parser.add_argument_group("how to draft and verify"))
    return parser


def _parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_draft(parser: argparse.ArgumentParser, threads: str) -> None:
    parser.add_argument(
        "--draft",
        default=DEFAULT_DRAFT,
        help="a GGUF file, builtin:smollm2, builtin:smollm2-q2, or none (default: %(default)s)",
    )
    parser.add_argument(
        "--drafts",
        type=_one_of(*DraftFrom),
        default=DraftFrom.AUTO,
        metavar="{auto,model,lookup}",
        help="where they come from: the model, what was written before (lookup, which needs no "
        "model), or whichever is likely to be right (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, help=threads)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _models_command(
        commands, "doctor", "check verifier, draft and link, and say what to expect of them"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    _add_sampling(parser.add_argument_group("how to draw"))


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _models_command(commands, "serve", "serve an OpenAI-compatible endpoint over HTTP")
    group = parser.add_argument_group("how programs reach this endpoint")
    group.add_argument(
        "--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="default: %(default)s"
    )
    group.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="holds the key that callers must show (or set SPECWIRE_API_KEY; default: none)",
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="let callers without a key name this host too, where a proxy passes theirs on; repeat",
    )
    group.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin use it; repeat",
    )
    group.add_argument(
        "--insecure", action="store_true", help="listen beyond this machine without a key"
    )
    group.add_argument(
        "--sessions",
        type=int,
        default=DEFAULT_SESSIONS,
        metavar="N",
        help="most choices generated at a time; more wait (default: %(default)s)",
    )
    # Each request says how to draw.
    sampling = argparse.ArgumentParser()
    _add_sampling(sampling.add_argument_group())
    parser.set_defaults(**vars(sampling.parse_args([])))


def _add_credentials(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tls", action="store_true", help="encrypt, and check the verifier's certificate"
    )
    group.add_argument(
        "--tls-ca",
        type=Path,
        metavar="FILE",
        help="trust these authorities instead of the public ones (PEM; implies --tls)",
    )
    group.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="this client's certificate (PEM)"
    )
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key (PEM)")
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the token to show (or set SPECWIRE_TOKEN)",
    )


def _one_of(*members: StrEnum) -> Callable[[str], StrEnum]:
    """A reader of one of these words; the error names them."""

    def read(text: str) -> StrEnum:
        for member in members:
            if text == member:
                return member
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(members)}")

    return read


def _add_generation(group: argparse._ArgumentGroup) -> None:
    defaults = GenerateOptions()
    group.add_argument(
        "--mode",
        type=_one_of(Mode.AUTO, Mode.SYNC, Mode.PIPELINE, Mode.RUN_AHEAD, Mode.STREAM),
        default=defaults.mode,
        metavar="{auto,sync,pipeline,run-ahead,stream}",
        help="auto measures and chooses; sync waits for each verdict; pipeline drafts on "
        "meanwhile; with run-ahead the cloud does not wait either; stream uses no draft "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--verification",
        type=_one_of(*Verification),
        default=defaults.verification,
        metavar="{auto,rejection,coupled}",
        help="rule of acceptance (default: %(default)s)",
    )
    group.add_argument(
        "--gamma",
        type=int,
        help="draft tokens in a proposal, with auto the most of them; 0 for none "
        "(default: measured and chosen)",
    )
    group.add_argument(
        "--window",
        type=int,
        help="most draft tokens under way, so no proposal is longer (default: chosen)",
    )


def _add_offline_tail(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--offline-tail",
        action="store_true",
        help="while the link is lost draft on, show that as provisional (on a terminal), and "
        "have it verified when it is back",
    )


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--temperature", type=float, default=DEFAULT_TEMPERATURE, help="default: %(default)s"
    )
    group.add_argument("--top-k", type=int, default=0, help="default: off")
    group.add_argument("--top-p", type=float, default=1.0, help="default: off")
    group.add_argument("--min-p", type=float, default=0.0, help="default: off")
    group.add_argument("--repetition-penalty", type=float, default=1.0, help="default: off")
    group.add_argument("--presence-penalty", type=float, default=0.0, help="default: off")
    group.add_argument("--frequency-penalty", type=float, default=0.0, help="default: off")
    group.add_argument("--seed", type=int, help="of every draw (default: the verifier's choice)")
    group.add_argument("--max-tokens", type=int, default=256, help="default: %(default)s")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeat"
    )


def credentials_from(args: argparse.Namespace, environment: Mapping[str, str]) -> Credentials:
    """The credentials that the arguments and the environment give.

    Raises:
        BadRequest: they don't fit together, or the token file can't be read.
    """
    token = environment.get("SPECWIRE_TOKEN") or None
    if args.token_file is not None:
        try:
            token = args.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"can't read the token file {args.token_file}: {error}") from error
    return Credentials(
        tls=args.tls or any((args.tls_ca, args.tls_cert, args.tls_key)),
        ca=args.tls_ca,
        cert=args.tls_cert,
        key=args.tls_key,
        token=token,
    )


def options_from(args: argparse.Namespace) -> GenerateOptions:
    """The options that the arguments ask for.

    Raises:
        BadRequest: a value is out of range.
    """
    return GenerateOptions(
        sampling=SamplingParams(
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            min_p=args.min_p,
            repetition_penalty=args.repetition_penalty,
            presence_penalty=args.presence_penalty,
            frequency_penalty=args.frequency_penalty,
        ),
        max_tokens=args.max_tokens,
        stops=tuple(args.stop),
        seed=args.seed,
        mode=args.mode,
        verification=args.verification,
        gamma=args.gamma,
        window=args.window,
        logprobs=getattr(args, "logprobs", None),
        record=getattr(args, "record", None) is not None,
        offline_tail=getattr(args, "offline_tail", False),
    )
