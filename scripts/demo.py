"""A verifier and an edge client on this machine, with real models: `make demo`.

Starts `cloud-verifier` with the built-in target, lets the edge client answer a
prompt with the small draft, then the same prompt by plain streaming from the
target, and prints both measurements side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator

from edge_client import EdgeClient, GenerateOptions, Mode, Result
from edge_client.render import TokenWriter, notice, wants_colour
from specwire.errors import SpecwireError
from specwire.sampling import SamplingParams

PROMPT = "Explain in a few sentences how a rainbow forms."
DRAFT = "builtin:smollm2-q2"
STOP_S = 15.0


def main() -> int:
    args = _parse()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    try:
        with verifier(cores[:1]) as address:
            if len(cores) > 1:
                os.sched_setaffinity(0, cores[1:])
            asyncio.run(compare(address, args))
    except KeyboardInterrupt:
        return 130
    except (SpecwireError, RuntimeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--gamma", type=int, help="most draft tokens in a proposal")
    return parser.parse_args()


@contextlib.contextmanager
def verifier(cores: list[int]) -> Iterator[str]:
    """A running verifier with the built-in target, on `cores`; its address."""
    notice("cloud: starting a verifier with the built-in target …")
    command = [sys.executable, "-m", "cloud_verifier.cli", "serve", "--model", "builtin:smollm2"]
    # float32: in bfloat16 a block of tokens and single ones round differently, and now
    # and then a near tie falls the other way. Here the texts shall be compared.
    command += ["--listen", "127.0.0.1:0", "--dtype", "float32"]
    if cores:
        command += ["--threads", str(len(cores))]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
    )
    threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True).start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.startswith("ready on "):
            raise RuntimeError(f"the verifier did not start: {line or 'no output'}")
        notice(f"cloud: {line}")
        yield line.removeprefix("ready on ").partition(": ")[0]
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pass_on(lines: Iterable[str]) -> None:
    """Show what the verifier says while it loads, without the list of its settings."""
    for line in lines:
        if not line.startswith(("settings:", "defaults:", "stopping:")):
            notice(f"cloud: {line.rstrip()}")


async def compare(address: str, args: argparse.Namespace) -> None:
    """The prompt with and without drafts."""
    async with EdgeClient(address, draft=DRAFT, threads=1, notify=notice) as client:
        # The first request of all pays for loading and warming up; neither side shall.
        await client.complete("Hello", options=GenerateOptions(max_tokens=24))
        with_draft = await _show(client, args, Mode.AUTO, "edge drafts, cloud verifies")
        streamed = await _show(client, args, Mode.STREAM, "the cloud alone, streaming")
    print(table(with_draft, streamed))


async def _show(client: EdgeClient, args: argparse.Namespace, mode: Mode, title: str) -> Result:
    print(f"\n── {title} ──", flush=True)
    options = GenerateOptions(
        sampling=SamplingParams(temperature=0.0),
        max_tokens=args.max_tokens,
        mode=mode,
        gamma=args.gamma,
        seed=1,
    )
    stream = client.stream(messages=[("user", args.prompt)], options=options)
    writer = TokenWriter(sys.stdout, colour=wants_colour(sys.stdout))
    async for token in stream:
        writer.write(token)
    writer.end()
    return stream.result


def table(with_draft: Result, streamed: Result) -> str:
    """Both measurements side by side."""
    alpha = with_draft.counts.alpha
    rows = [
        ("", "edge drafts", "streaming"),
        ("tokens", str(len(with_draft.token_ids)), str(len(streamed.token_ids))),
        ("tokens/s", f"{with_draft.tokens_per_s:.1f}", f"{streamed.tokens_per_s:.1f}"),
        ("first token, ms", f"{with_draft.ttft_s * 1e3:.0f}", f"{streamed.ttft_s * 1e3:.0f}"),
        ("target forwards", str(with_draft.counts.rounds), str(streamed.counts.rounds)),
        (
            "draft tokens accepted",
            f"{with_draft.counts.accepted} of {with_draft.counts.examined}"
            + (f" (α {alpha:.2f})" if alpha is not None else ""),
            "–",
        ),
        ("bytes up", str(with_draft.bytes_up), str(streamed.bytes_up)),
        ("bytes down", str(with_draft.bytes_down), str(streamed.bytes_down)),
    ]
    lines = [f"{name:<24}{left:>20}{right:>14}" for name, left, right in rows]
    ratio = with_draft.tokens_per_s / streamed.tokens_per_s if streamed.tokens_per_s else 0.0
    verdict = "faster" if ratio >= 1 else "slower"
    same = "the same" if with_draft.token_ids == streamed.token_ids else "NOT the same"
    lines.append(
        f"\nThe texts are {same}, token for token.\n"
        f"{ratio:.2f}× the speed of streaming on this machine ({verdict}), over loopback.\n"
        "On a slow link waiting for drafts loses, and auto does not wait: see README, "
        "“When it does not help”."
    )
    return "\n" + "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
