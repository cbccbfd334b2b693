"""The real programs, to be watched or measured: a verifier process, and every way to get tokens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from edge_client import EdgeClient, GenerateOptions, Mode
from edge_client.draft.gguf_file import check_gguf
from edge_client.draft.models import resolve_model
from edge_client.render import notice
from netsim.scenario import Way
from specwire.errors import BadRequest, ModelError
from specwire.limits import PROTOCOL_VERSIONS
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc

TARGET = "builtin:smollm2"
STOP_S = 15.0

Messages = Sequence[tuple[str, str]]


def cores() -> tuple[list[int], list[int]]:
    """Cores for the cloud and, others, for the edge; the same where there is only one."""
    if not hasattr(os, "sched_getaffinity"):
        return [], []
    available = sorted(os.sched_getaffinity(0))
    return available[:1], available[1:] or available[:1]


def check_draft(spec: str) -> None:
    """Whether there is such a draft model, before anything slow begins.

    Raises:
        BadRequest: there is none, or it is no GGUF file.
    """
    try:
        check_gguf(resolve_model(spec, notice))
    except ModelError as error:
        raise BadRequest(f"--draft {spec}: {error}") from error


def check_drafts(spec: str, measured: Measured) -> None:
    """Whether the draft was put to use; without it edge ways would only seem to be measured.

    Raises:
        BadRequest: the verifier and the draft did not come together; why has been told.
    """
    if measured.draft is None:
        raise BadRequest(f"--draft {spec}: nothing can be drafted with it for {TARGET}")


@contextlib.contextmanager
def on_cores(chosen: Sequence[int]) -> Iterator[None]:
    """This process, and what it starts meanwhile, on these cores only; none: anywhere."""
    if not chosen:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def verifier(
    tell: Callable[[str], None],
    *,
    model: str = TARGET,
    on: Sequence[int] = (),
    dtype: str = "float32",
    listen: str = "127.0.0.1:0",
    inside: Sequence[str] = (),
    metrics: int = 0,
) -> Iterator[str]:
    """A verifier process; its address.

    on: its cores; none: anywhere. inside: what its command is put behind. listen: in the
        clear, so an address that nobody else reaches. metrics: port of its Prometheus metrics on
        this machine; 0 for none.
    dtype: float32 by default, for in bfloat16 a block of tokens and single ones round
        differently, and now and then a near tie falls the other way: texts are compared here.

    Raises:
        RuntimeError: it did not start.
    """
    command = [*inside, sys.executable, "-m", "cloud_verifier.cli", "serve", "--model", model]
    command += ["--listen", listen, "--dtype", dtype]
    if inside:
        command.append("--insecure")
    if metrics:
        command += ["--metrics", f"127.0.0.1:{metrics}"]
    if on:
        command += ["--threads", str(len(on))]
    pipe = subprocess.PIPE
    with on_cores(on):  # inherited by the process, and by its threads from the start
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=_pass_on, args=(process.stderr, tell), daemon=True).start()
    try:
        line = process.stdout.readline().strip()
        if not line.startswith("ready on "):
            raise RuntimeError(f"the verifier did not start: {line or 'no output'}")
        tell(line)
        yield line.removeprefix("ready on ").partition(": ")[0]
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pass_on(lines: Iterable[str], tell: Callable[[str], None]) -> None:
    """Tell what the verifier says while it loads, without the list of its settings."""
    for line in lines:
        if not line.startswith(("settings:", "defaults:", "stopping:")):
            tell(line.rstrip())


@dataclass(frozen=True)
class Arrival:
    """A token that came. at_s: since it was asked for. origin: who wrote it."""

    at_s: float
    text: str
    origin: str


@dataclass
class Measured:
    """One real generation.

    bytes_up, bytes_down: payload. wire_up, wire_down: as a link counted them, if it did.
    unread_tokens: of the prompt, those that the verifier had to evaluate. draft: what drafted,
    if anything could.
    """

    way: Way
    arrivals: list[Arrival] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    forwards: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_up: int = 0
    wire_down: int = 0
    prompt_tokens: int = 0
    unread_tokens: int = 0
    draft: str | None = None
    alpha: float | None = None
    ways: dict[str, int] = field(default_factory=dict)
    record: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(arrival.text for arrival in self.arrivals)

    @property
    def duration_s(self) -> float:
        """Time to the last token."""
        return self.arrivals[-1].at_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens over the whole time, the first one's included."""
        return len(self.token_ids) / self.duration_s


async def generate(
    client: EdgeClient,
    address: str,
    way: Way,
    messages: Messages,
    *,
    tokens: int,
    temperature: float = 0.0,
    gamma: int | None = None,
    seed: int = 1,
    watch: Callable[[Arrival], None] = lambda arrival: None,
) -> Measured:
    """Get an answer in one way, and time each token.

    Args:
        client: of the verifier, with its draft; not used by `Way.PER_TOKEN`.
        address: the same verifier's, by the same link.
        way: how; `Way.CLOUD` can only be simulated.
        messages: what to answer.
        tokens: most tokens of the answer.
        temperature: as in `GenerateOptions`.
        gamma: as there.
        seed: as there.
        watch: hears of each token as it comes.
    """
    measured = Measured(way)
    began = time.perf_counter()

    def arrived(text: str, origin: str) -> None:
        arrival = Arrival(time.perf_counter() - began, text, origin)
        measured.arrivals.append(arrival)
        watch(arrival)

    sampling = SamplingParams(temperature=temperature)
    if way is Way.PER_TOKEN:
        opening = pb.Open(protocol_version=PROTOCOL_VERSIONS[-1], return_text=True, seed=seed)
        opening.sampling.CopyFrom(sampling.to_proto())
        opening.max_tokens = tokens
        for role, content in messages:
            opening.chat.messages.add(role=role, content=content)
        async for response in _calls(address, opening, measured):
            measured.token_ids.extend(response.committed.tokens)
            arrived(response.committed.text.decode(errors="replace"), "run-ahead")
        return measured
    options = GenerateOptions(
        sampling=sampling,
        max_tokens=tokens,
        mode=Mode(way.value),
        gamma=gamma,
        seed=seed,
        record=way is not Way.STREAM,
    )
    stream = client.stream(messages=messages, options=options)
    async for token in stream:
        if token.id is not None:
            arrived(token.text, token.origin)
    result = stream.result
    measured.token_ids = list(result.token_ids)
    measured.forwards, measured.prompt_tokens = result.counts.rounds, result.prompt_tokens
    measured.unread_tokens = result.prompt_tokens - result.cached_prompt_tokens
    measured.bytes_up, measured.bytes_down = result.bytes_up, result.bytes_down
    measured.draft, measured.alpha = result.draft, result.counts.alpha
    measured.ways, measured.record = result.ways, result.record
    return measured


async def _calls(
    address: str, opening: pb.Open, measured: Measured
) -> AsyncIterator[pb.VerifyResponse]:
    """A call for each token; its answers."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: rpc.VerifierAsyncStub = rpc.VerifierStub(channel)
        request = pb.VerifyRequest(open=opening)
        session = b""
        number = 0
        while True:
            response = await stub.Verify(request)
            measured.bytes_up += request.ByteSize()
            measured.bytes_down += response.ByteSize()
            if response.HasField("opened"):
                session = response.opened.session_id
            if response.committed.tokens:
                measured.forwards += 1
                yield response
            if response.HasField("finished"):
                return
            number += 1
            ask = pb.Proposal(number=number, chain=1, start=response.frontier)
            request = pb.VerifyRequest(session_id=session, frontier=response.frontier, proposal=ask)
