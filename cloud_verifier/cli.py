"""The `cloud-verifier` command.

Exit codes: 0 stopped as asked, 1 a model or address can't be used, 2 wrong
arguments, 130 interrupted before it was ready.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from cloud_verifier.backends.load import Target, load_target
from cloud_verifier.server import VerifierServer
from cloud_verifier.settings import Settings
from specwire import __version__
from specwire.errors import SpecwireError
from specwire.limits import Limits


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    settings, log_level = _parse(argv)
    logging.basicConfig(
        level=log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        target = load_target(
            settings.model,
            dtype=settings.dtype,
            device=settings.device,
            context=settings.context,
            threads=settings.threads,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        asyncio.run(_serve(settings, target))
    except SpecwireError as error:
        print(f"cloud-verifier: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(settings: Settings, target: Target) -> None:
    limits = Limits(
        context=target.backend.context,
        gamma=settings.gamma,
        chain=max(256, 4 * settings.gamma),
        sessions=settings.sessions,
        idle_s=settings.idle_s,
    )
    server = VerifierServer(target.backend, target.encoder, listen=settings.listen, limits=limits)
    await server.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    print(
        f"ready on {server.address}: {target.backend.name}, "
        f"{len(target.backend.vocabulary)} tokens, context {target.backend.context}",
        flush=True,
    )
    await stop.wait()
    print("stopping: open sessions can be resumed elsewhere", file=sys.stderr, flush=True)
    await server.stop(settings.grace_s)


def _parse(argv: Sequence[str] | None) -> tuple[Settings, int]:
    parser = argparse.ArgumentParser(
        prog="cloud-verifier", description="Verify draft tokens with a large target model."
    )
    parser.add_argument("--version", action="version", version=f"specwire {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a target model over gRPC",
        description="Serve a target model over gRPC. Prints one line when it is ready.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    serve.add_argument(
        "--model",
        required=True,
        default=argparse.SUPPRESS,
        help="a Hugging Face id, a model folder, a .gguf file, or builtin:smollm2",
    )
    serve.add_argument("--listen", default=Settings.listen, metavar="HOST:PORT", help="address")
    serve.add_argument(
        "--dtype",
        default=Settings.dtype,
        choices=("auto", "float32", "bfloat16", "float16"),
        help="of the weights; auto takes what the checkpoint says",
    )
    serve.add_argument("--device", default=Settings.device, help="auto, cpu, cuda, cuda:1, …")
    serve.add_argument(
        "--context",
        type=_positive,
        default=Settings.context,
        help="tokens a session may hold; default: what the model was trained with",
    )
    serve.add_argument(
        "--threads", type=_positive, default=Settings.threads, help="of the model on a CPU"
    )
    serve.add_argument(
        "--gamma", type=_positive, default=Settings.gamma, help="most draft tokens in a proposal"
    )
    serve.add_argument(
        "--sessions", type=_positive, default=Settings.sessions, help="most sessions at a time"
    )
    serve.add_argument(
        "--idle",
        dest="idle_s",
        type=float,
        default=Settings.idle_s,
        metavar="SECONDS",
        help="how long a session without a client is kept",
    )
    serve.add_argument(
        "--grace",
        dest="grace_s",
        type=float,
        default=Settings.grace_s,
        metavar="SECONDS",
        help="how long a stop waits for running calls",
    )
    serve.add_argument("-v", "--verbose", action="store_true", help="log more")
    values = vars(parser.parse_args(argv))
    log_level = logging.DEBUG if values.pop("verbose") else logging.WARNING
    return Settings(**values), log_level


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
