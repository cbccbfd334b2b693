"""The `netsim` command: what edge speculation saves, on which link, against what.

Each command is a module with `add_arguments(parser)` and `run(args) -> exit code`, imported
only where it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from specwire import __version__
from specwire.errors import BadRequest, SpecwireError
from specwire.standard_output import take_any_text

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_CODES = """\
exit codes:
  0    done
  1    failed: something can't be read, written, reached or measured
  2    wrong arguments, or a value out of range
  130  interrupted
"""


@dataclass(frozen=True)
class Command:
    """A word of the command line. module: where it is carried out."""

    name: str
    module: str
    help: str


COMMANDS = (
    Command("profiles", "netsim.commands.profiles", "list the link profiles and their sources"),
    Command("run", "netsim.commands.run", "simulate a scenario, beside all three baselines"),
    Command("sweep", "netsim.commands.sweep", "simulate many scenarios, into CSV or Parquet"),
    Command("report", "netsim.commands.report", "write a page with pictures of what it saves"),
    Command("plan", "netsim.commands.plan", "say how to deploy on a link, and what would help"),
    Command("proxy", "netsim.proxy", "put a bad link between real programs"),
    Command("demo", "netsim.demo", "watch the real programs over an emulated link"),
    Command("validate", "netsim.commands.validate", "simulate and measure the same, and compare"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    take_any_text()
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parse(words)
    try:
        code = importlib.import_module(args.module).run(args)
        sys.stdout.flush()
        return int(code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BadRequest as error:
        print(f"netsim {args.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except SpecwireError as error:
        print(f"netsim {args.command}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        print(f"netsim {args.command}: {what}{error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="netsim",
        description="What edge speculation saves on a link, against every honest alternative.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specwire {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in words if not word.startswith("-")), None)
    parsers = {}
    for command in COMMANDS:
        about = command.help
        own = commands.add_parser(
            command.name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        own.set_defaults(module=command.module)
        parsers[command.name] = own
        if command.name == asked:
            importlib.import_module(command.module).add_arguments(own)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        # Left to argparse, the usage shown would be of all commands instead of this one.
        parsers[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
