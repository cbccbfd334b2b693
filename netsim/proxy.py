"""`netsim proxy`: a bad link between real programs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys

from netsim import control
from netsim.links import LinkModel, profile
from netsim.relay import Relay, split_address
from specwire.errors import BadRequest

EXIT_INTERRUPTED = 130
DESCRIPTION = """\
Relays TCP connections to --target over an emulated link: delay, jitter, rate, loss, outages,
each way, in real time. A lost packet is a delay; no byte is dropped or changed."""
EPILOG = f"""\
commands, on the control port (--control) or stdin (--commands):
{control.__doc__.partition(chr(10) * 2)[2] if control.__doc__ else ""}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--profile",
        default="4g-weak",
        metavar="NAME",
        help="the link: a name (netsim profiles lists them), rtt-N, or a .toml file"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where clients connect; port 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--target", required=True, metavar="HOST:PORT", help="where they are relayed to"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of everything random (default: %(default)s)"
    )
    parser.add_argument(
        "--control",
        metavar="HOST:PORT",
        help="take commands on this port of the loopback, a line each",
    )
    parser.add_argument(
        "--commands", action="store_true", help="take commands from stdin, a line each"
    )


def run(args: argparse.Namespace) -> int:
    """Relay until interrupted.

    Raises:
        BadRequest: an address or the profile won't do.
        OSError: an address can't be listened on.
    """
    try:
        model = profile(args.profile)
        split_address(args.target)
        split_address(args.listen)
        return asyncio.run(_relay(args, model))
    except ValueError as error:
        raise BadRequest(str(error)) from error


async def _relay(args: argparse.Namespace, model: LinkModel) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    code = 0

    def interrupted() -> None:
        nonlocal code
        code = EXIT_INTERRUPTED
        stop.set()

    for number, handler in ((signal.SIGINT, interrupted), (signal.SIGTERM, stop.set)):
        with contextlib.suppress(NotImplementedError):  # no signals in this system's loops
            loop.add_signal_handler(number, handler)
    relay = Relay(args.target, model, listen=args.listen, seed=args.seed)
    async with relay, contextlib.AsyncExitStack() as stack:
        if args.control:
            server = await control.listen(relay, args.control, stop.set)
            stack.callback(server.close)
            host, port = server.sockets[0].getsockname()[:2]
            print(f"control on {host}:{port}", flush=True)
        if args.commands:
            control.follow(relay, sys.stdin.fileno(), stop.set)
        print(f"ready on {relay.address}: {args.target} over {model.name}", flush=True)
        await stop.wait()
        print(json.dumps(relay.stats()), file=sys.stderr, flush=True)
    return code
