"""What serving many sessions costs: batching, work outside the model, shared prompts, long ones.

Each ratio is of two things measured in turns, in one run. The client side of the
loopback measurements is a process of its own, on another core than the verifier.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np

from benchmarks.pair import TARGET, verifier
from cloud_verifier.backends.load import load_target
from cloud_verifier.observe import Round, Silent
from cloud_verifier.server import VerifierServer
from netsim.real import cores, on_cores
from specwire.errors import BadRequest
from specwire.limits import Limits
from specwire.ports import Step
from specwire.v1 import verifier_pb2 as pb
from specwire.v1 import verifier_pb2_grpc as rpc
from specwire.vocabulary import Vocabulary

SESSIONS = 16
TOKENS = 6
"""Of a round: five draft tokens and the last committed one."""
PROMPT = 500
LONGER = 50
"""How many times longer the prompt is that others must not wait for."""

Row = dict[str, Any]


def run(*, quick: bool = False) -> list[Row]:
    """One row for each measurement."""
    turns, rounds = (1, 40) if quick else (7, 300)
    rows = [_batching(turns)]
    for clients, size, temperature in itertools.product((1, 16), (64, 49_152), (0.0, 0.7)):
        rows += asyncio.run(_outside_the_model(clients, size, temperature, rounds))
    cloud, edge = cores()
    with verifier(cloud) as address, on_cores(edge):
        rows.append(asyncio.run(_reopening(address, turns)))
        rows.append(asyncio.run(_beside_a_long_prompt(address, turns)))
    return rows


def _row(what: str, unit: str, value: float, target: float, base: float, other: float) -> Row:
    return {
        "what": what,
        "value": value,
        "unit": unit,
        "target": target,
        "measured_ms": 1e3 * other,
        "against_ms": 1e3 * base,
    }


# -------------------------------------------------------------------- batching


def _batching(turns: int) -> Row:
    """One forward for 16 sessions against 16 forwards."""
    backend = load_target(TARGET).backend
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(SESSIONS):
        ids = rng.integers(100, 40_000, 64 + TOKENS).tolist()
        sequence = backend.open()
        backend.forward([Step(sequence, 0, ids[:64], 1)])
        steps.append(Step(sequence, 64, ids[64:], TOKENS))
    together, apart = [], []
    for _ in range(turns):
        start = time.perf_counter()
        backend.forward(steps)
        middle = time.perf_counter()
        for step in steps:
            backend.forward([step])
        together.append(middle - start)
        apart.append(time.perf_counter() - middle)
    ratio = statistics.median(b / a for a, b in zip(together, apart, strict=True))
    what = f"{SESSIONS} sessions of {TOKENS} tokens in one forward"
    base, other = statistics.median(apart), statistics.median(together)
    return _row(what, "times faster than one by one", ratio, 4.0, base, other)


# ----------------------------------------------------------- outside the model


class Constant:
    """A TargetBackend that answers at once, with the same logits always."""

    name = "constant"
    context = 1 << 20

    def __init__(self, size: int) -> None:
        names = [f"t{i}" for i in range(size)]
        self.vocabulary = Vocabulary(names, [name.encode() for name in names], frozenset())
        self.forward_s = 0.0
        self._logits = np.random.default_rng(1).normal(scale=3, size=(64, size)).astype(np.float32)
        self._lengths: dict[int, int] = {}
        self._handles = itertools.count(1)

    def open(self, tokens: Sequence[int] = ()) -> int:
        handle = next(self._handles)
        self._lengths[handle] = 0
        return handle

    def cached(self, sequence: int) -> int:
        return self._lengths[sequence]

    def fits(self, steps: Sequence[Step]) -> bool:
        return True

    def forward(self, steps: Sequence[Step]) -> list[np.ndarray]:
        start = time.perf_counter()
        for step in steps:
            self._lengths[step.sequence] = step.keep + len(step.tokens)
        rows = [self._logits[: step.rows] for step in steps]
        self.forward_s += time.perf_counter() - start
        return rows

    def close(self, sequence: int) -> None:
        self._lengths.pop(sequence, None)


class NoText:
    """A PromptEncoder that encodes nothing: prompts come as ids."""

    has_chat_template = False
    chat_template_digest = b""

    def encode_text(self, text: str) -> list[int]:
        raise BadRequest("send ids")

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        raise BadRequest("send ids")


class Inside(Silent):
    """Hears how long rounds stay in the service: from a proposal at hand to its verdict."""

    def __init__(self) -> None:
        self.spans: list[float] = []

    def round_ended(self, round: Round) -> None:
        """Note all but the forward."""
        self.spans.append(round.ended - round.ready - round.verdict.forward_us / 1e6)


async def _outside_the_model(clients: int, size: int, temperature: float, rounds: int) -> list[Row]:
    """Wall time of a round over loopback, both ends, less what the forwards took.

    And for one client, who never waits for others, the part of it within the service.
    """
    cloud, edge = cores()
    backend, inside = Constant(size), Inside()
    with on_cores(cloud):
        limits = Limits(context=backend.context)
        async with VerifierServer(backend, NoText(), limits=limits, observer=inside) as server:
            command = [sys.executable, "-m", "benchmarks.service", server.address]
            command += [str(clients), str(rounds), str(temperature), str(min(edge))]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            out, _ = await asyncio.wait_for(process.communicate(), 300)
    spans: list[float] = json.loads(out)
    # Of 16 clients each waits for the others too: a round costs the service its share.
    a_round = statistics.median(spans) / clients
    forward = backend.forward_s / (rounds * clients)
    outside = 1e3 * (a_round - forward)
    case = f"{clients} clients, {size} ids, temperature {temperature:g}"
    rows = [_row(f"both ends, {case}", "ms a round, no model", outside, 1.0, forward, a_round)]
    if clients == 1:
        within = statistics.median(inside.spans)
        unit = "ms a round, no model, no wire"
        rows.append(_row(f"service, {case}", unit, 1e3 * within, 0.7, forward, within))
    return rows


async def _talk(stub: Any, rounds: int, temperature: float, prompt: Sequence[int]) -> list[float]:
    """Seconds of each round of a session whose drafts are five tokens picked with certainty."""
    return [spent async for spent in _rounds(stub, rounds, temperature, prompt)]


async def _rounds(
    stub: Any, rounds: int, temperature: float, prompt: Sequence[int]
) -> AsyncIterator[float]:
    call = stub.Decode()
    sampling = pb.Sampling(temperature=temperature)
    frame = pb.Open(protocol_version=1, ids=pb.TokenIds(ids=prompt), sampling=sampling, seed=1)
    await call.write(pb.EdgeFrame(open=frame))
    frontier = (await call.read()).opened.frontier
    try:
        for number in range(1, rounds + 1):
            draft = pb.Proposal(number=number, chain=number, start=frontier, point=pb.PointQ())
            draft.tokens.extend(7 + (number + i) % 50 for i in range(TOKENS - 1))
            start = time.perf_counter()
            await call.write(pb.EdgeFrame(proposal=draft))
            answer = await call.read()
            spent = time.perf_counter() - start
            if answer is grpc.aio.EOF or answer.WhichOneof("kind") != "verdict":
                return
            verdict = answer.verdict
            frontier = verdict.start + verdict.accepted + verdict.HasField("token")
            yield spent
    finally:
        call.cancel()


async def _clients(address: str, clients: int, rounds: int, temperature: float) -> list[float]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.VerifierStub(channel)
        await _talk(stub, 20, temperature, [1, 2])
        talks = (_talk(stub, rounds, temperature, [1, 2, 3 + i]) for i in range(clients))
        return [span for spans in await asyncio.gather(*talks) for span in spans]


# -------------------------------------------------------------- real sessions


@asynccontextmanager
async def _stub(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield rpc.VerifierStub(channel)


async def _first_token_s(stub: Any, prompt: Sequence[int]) -> float:
    sampling = pb.Sampling(temperature=0.0)
    frame = pb.Open(protocol_version=1, ids=pb.TokenIds(ids=prompt), sampling=sampling)
    frame.max_tokens = 1
    start = time.perf_counter()
    async for answer in stub.Generate(frame):
        if answer.WhichOneof("kind") == "verdict":
            return time.perf_counter() - start
    raise RuntimeError("no token came")


def _prompt(length: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(100, 40_000, length).tolist()
    return ids


async def _reopening(address: str, turns: int) -> Row:
    """Time to the first token with a prompt that another session had."""
    cold, warm = [], []
    async with _stub(address) as stub:
        await _first_token_s(stub, _prompt(8, 1))
        for turn in range(turns):
            prompt = _prompt(PROMPT, 1_000 + turn)
            cold.append(await _first_token_s(stub, prompt))
            warm.append(await _first_token_s(stub, prompt))
    ratio = statistics.median(w / c for c, w in zip(cold, warm, strict=True))
    what = f"first token of a session reopened with a prompt of {PROMPT} tokens"
    base, other = statistics.median(cold), statistics.median(warm)
    return _row(what, "of the cold time", ratio, 0.2, base, other)


async def _beside_a_long_prompt(address: str, turns: int) -> Row:
    """Round times of three sessions while a long prompt is prefilled, against without."""
    short = 20
    normal: list[float] = []
    beside: list[float] = []
    current = normal
    stop = asyncio.Event()

    async def decode(stub: Any, seed: int) -> None:
        while not stop.is_set():  # an end token may end a session
            async for spent in _rounds(stub, 1_000, 0.0, _prompt(short, seed)):
                current.append(spent)
                if stop.is_set():
                    return

    async with _stub(address) as stub:
        talks = [asyncio.create_task(decode(stub, seed)) for seed in range(3)]
        await asyncio.sleep(2.0)  # the share of prefill is learnt from rounds without
        normal.clear()
        for turn in range(turns):
            current = normal
            await asyncio.sleep(2.0)
            current = beside
            await _first_token_s(stub, _prompt(short * LONGER, 2_000 + turn))
        stop.set()
        await asyncio.gather(*talks)
    base, other = (float(np.percentile(times, 95)) for times in (normal, beside))
    what = f"95th percentile of a round beside a prompt {LONGER} times longer"
    return _row(what, "of that without", other / base, 3.0, base, other)


if __name__ == "__main__":
    _address, _count, _of, _temperature, _core = sys.argv[1:]
    os.sched_setaffinity(0, {int(_core)})
    print(json.dumps(asyncio.run(_clients(_address, int(_count), int(_of), float(_temperature)))))
