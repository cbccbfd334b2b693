"""What edge tests run against: verifiers in a thread of their own, a relay that cuts, scripts."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pytest

from cloud_verifier.backends.load import Target, load_target
from cloud_verifier.server import VerifierServer
from edge_client import EdgeClient, GenerateOptions, Mode, Verification
from edge_client.draft.llama_draft import LlamaDraft
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.draft.source import Drafted, DraftRules, DraftSource, ModelSource
from specwire.edge_session import EdgeSession
from specwire.limits import Limits
from specwire.ports import PromptEncoder, Step, TargetBackend
from specwire.qrow import point_row
from specwire.sampling import SamplingParams
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

T = TypeVar("T")

DRAFTING_MODES = (Mode.SYNC, Mode.PIPELINE, Mode.RUN_AHEAD)


# ── verifiers ────────────────────────────────────────────────────────────────────────


class VerifierThread:
    """A verifier with a thread and an event loop of its own, as another process would have."""

    def __init__(
        self, backend: TargetBackend, encoder: PromptEncoder, limits: Limits | None = None
    ) -> None:
        self.backend = backend
        self.encoder = encoder
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="verifier")
        self._thread.start()
        self._server: VerifierServer | None = None
        self.address = "127.0.0.1:0"
        self.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the verifier's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def start(self) -> None:
        """Serve with no sessions, at the address of before if there was one."""

        async def begin() -> VerifierServer:
            server = VerifierServer(
                self.backend, self.encoder, listen=self.address, limits=self._limits
            )
            await server.start()
            return server

        self._server = self.run(begin())
        self.address = self._server.address

    def stop(self, grace_s: float = 0.0) -> None:
        """Stop serving and forget all sessions; `start` brings an empty verifier back."""
        if self._server is not None:
            self.run(self._server.stop(grace_s))
            self._server = None

    @property
    def attached(self) -> int:
        """Sessions that a stream is attached to."""

        async def count() -> int:
            assert self._server is not None
            sessions = self._server._scheduler.sessions
            return sum(session.outbox is not None for session in sessions)

        return self.run(count())

    @property
    def kept(self) -> int:
        """Sessions that it remembers, attached or not."""

        async def count() -> int:
            assert self._server is not None
            return len(self._server._scheduler.sessions)

        return self.run(count())

    @property
    def unended(self) -> int:
        """Sessions that could still go on, attached or not."""

        async def count() -> int:
            assert self._server is not None
            sessions = self._server._scheduler.sessions
            return sum(session.state.finished is None for session in sessions)

        return self.run(count())

    def close(self) -> None:
        """Stop, and end the thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Real:
    """The built-in target in float32, loaded once however many modules ask for it."""

    users = 0
    verifier: VerifierThread | None = None


def real_verifier() -> Iterator[VerifierThread]:
    """The body of a session-scoped fixture: the built-in target in float32, served."""
    if _Real.verifier is None:
        target = load_target("builtin:smollm2", dtype="float32", device="cpu")
        _Real.verifier = VerifierThread(target.backend, target.encoder)
    _Real.users += 1
    yield _Real.verifier
    _Real.users -= 1
    if _Real.users == 0:
        _Real.verifier.close()
        _Real.verifier = None


def reference_ids(verifier: VerifierThread, prompt: Sequence[int], tokens: int) -> list[int]:
    """Greedy output of transformers' own `generate` on the verifier's model, which must be idle."""
    import torch

    model: Any = verifier.backend._model  # type: ignore[attr-defined]
    ids = torch.tensor([list(prompt)])
    served = model.config._attn_implementation
    model.set_attn_implementation("sdpa")  # transformers' own, as the checkpoint comes
    try:
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            pad_token_id=0,
            eos_token_id=sorted(verifier.backend.vocabulary.end_ids),
        )
    finally:
        model.set_attn_implementation(served)
    result: list[int] = output[0, len(prompt) :].tolist()
    return result


def tiny_verifier(path: Path, *, context: int | None = None) -> VerifierThread:
    """A served target on a tiny GGUF file, float32 on the CPU."""
    target: Target = load_target(
        str(path), dtype="float32", device="cpu", threads=1, context=context
    )
    return VerifierThread(target.backend, target.encoder)


class ScriptBackend:
    """A TargetBackend that is certain of its text, whatever the drafts are.

    After a prompt of `prompt_length` tokens comes `script`, then an end token.
    """

    name = "script"

    def __init__(
        self,
        vocabulary: Vocabulary,
        script: Sequence[int],
        *,
        prompt_length: int,
        context: int = 4096,
        step_s: float = 0.0,
    ) -> None:
        self.vocabulary = vocabulary
        self.context = context
        self._script = [*script, min(vocabulary.end_ids)]
        self._prompt_length = prompt_length
        self._step_s = step_s
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
        threading.Event().wait(self._step_s)
        results = []
        for step in steps:
            end = step.keep + len(step.tokens)
            self._lengths[step.sequence] = end
            rows = np.full((step.rows, len(self.vocabulary)), -30.0, np.float32)
            for row, position in enumerate(range(end - step.rows + 1, end + 1)):
                index = min(max(position - self._prompt_length, 0), len(self._script) - 1)
                rows[row, self._script[index]] = 0.0
            results.append(rows)
        return results

    def close(self, sequence: int) -> None:
        self._lengths.pop(sequence, None)


class ByteEncoder:
    """A PromptEncoder for vocabularies that begin with `first` specials and then 256 bytes."""

    has_chat_template = False
    chat_template_digest = b""

    def __init__(self, first: int = 3) -> None:
        self._first = first

    def encode_text(self, text: str) -> list[int]:
        return [self._first + byte for byte in text.encode()]

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        return self.encode_text("".join(content for _, content in messages))


# ── drafts ───────────────────────────────────────────────────────────────────────────

SourceFactory = Callable[[LlamaWeights, EdgeSession, GenerateOptions], DraftSource]


class SourceClient(EdgeClient):
    """An edge client that drafts with a given source instead of its model."""

    def __init__(self, server: str, draft: str, source: SourceFactory, **options: Any) -> None:
        super().__init__(server, draft=draft, **options)
        self._drafter.source = source  # type: ignore[method-assign, assignment]


def model_source(context: int) -> SourceFactory:
    """The draft model with a context of this many tokens."""

    def make(weights: LlamaWeights, machine: EdgeSession, options: GenerateOptions) -> DraftSource:
        rules = DraftRules(
            params=options.sampling,
            mode=machine.request.mode,
            seed=machine.request.seed,
            size=len(weights.vocabulary),
            padding_ids=weights.vocabulary.padding_ids,
            prompt_length=len(machine.request.prompt),
            truncation=options.truncation,
        )
        return ModelSource(LlamaDraft(weights, context=context, threads=1), rules)

    return make


class GuessSource:
    """Guesses by a rule that knows nothing of the target."""

    def __init__(self, guess: Callable[[Sequence[int]], int | None], *, with_q: bool) -> None:
        self._guess = guess
        self._with_q = with_q
        self.closed = False

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        token = self._guess(prefix)
        if token is None:
            return None
        return Drafted(token, point_row(token) if self._with_q else None)

    def close(self) -> None:
        self.closed = True


def guess_source(guess: Callable[[Sequence[int]], int | None]) -> SourceFactory:
    """A factory of `GuessSource`s; every session gets its own."""

    def make(weights: LlamaWeights, machine: EdgeSession, options: GenerateOptions) -> DraftSource:
        coupled = machine.request.mode == pb.VERIFICATION_MODE_COUPLED
        return GuessSource(guess, with_q=not coupled)

    return make


def random_guess(size: int, seed: int = 0) -> Callable[[Sequence[int]], int]:
    """Any token but the specials, by position and seed."""

    def guess(prefix: Sequence[int]) -> int:
        return random.Random(f"{seed} {len(prefix)} {prefix[-1]}").randrange(3, size)

    return guess


# ── a bad link ───────────────────────────────────────────────────────────────────────


class Relay:
    """A TCP relay on a free loopback port that cuts connections in the middle.

    Args:
        server: HOST:PORT to relay to.
        budgets: for each connection in turn, after how many bytes up and down it is
            cut, whichever comes first; None leaves it alone, as the end of all does.
            They count from `arm` on, connections before it are left alone.
    """

    def __init__(
        self, server: str, budgets: Iterator[tuple[int, int] | None] | None = None
    ) -> None:
        host, _, port = server.rpartition(":")
        self._target = (host, int(port))
        self._budgets = budgets if budgets is not None else iter(())
        self._armed = False
        self._writers: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.connections = 0
        self.cuts = 0
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def arm(self) -> None:
        """Cut what is connected now, and from here on as planned."""
        self._armed = True
        self.cut()

    def cut(self) -> None:
        """Cut every connection at once, without an orderly end."""
        pairs, self._writers = self._writers, []
        for pair in pairs:
            self.cuts += 1
            for writer in pair:
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        budget = next(self._budgets, None) if self._armed else None
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._writers.append(pair)
        up, down = budget or (None, None)
        for source, sink, left in ((reader, far_writer, up), (far_reader, writer, down)):
            task = asyncio.create_task(self._pipe(source, sink, left, pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pipe(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        left: int | None,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        try:
            while data := await source.read(4096 if left is None else max(left, 1)):
                sink.write(data)
                await sink.drain()
                if left is not None:
                    left -= len(data)
                    if left <= 0:
                        break
        except OSError:
            pass
        if pair in self._writers:
            self._writers.remove(pair)
            if left is not None and left <= 0:
                self.cuts += 1
            # What was written just now may still be on its way: an abort would drop it.
            for writer in pair:
                writer.close()


def byte_budgets(seed: int, low: int, high: int, count: int) -> Iterator[tuple[int, int]]:
    """`count` pairs of bytes up and down, each between `low` and `high`."""
    draw = random.Random(seed)
    for _ in range(count):
        yield draw.randint(low, high), draw.randint(low, high)


# ── the command line ─────────────────────────────────────────────────────────────────

EDGE_CLIENT = (sys.executable, "-m", "edge_client.cli")


def edge_environment(**extra: str) -> dict[str, str]:
    """This process's environment without what would colour or redirect the client."""
    dropped = ("NO_COLOR", "FORCE_COLOR", "http_proxy", "HTTP_PROXY", "all_proxy")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**env, "TERM": "xterm", "PYTHONUTF8": "1", **extra}


def edge_client(
    *args: str, text: str | bytes = "", timeout: float = 180.0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `edge-client` to its end, with `text` on standard input."""
    done = subprocess.run(
        [*EDGE_CLIENT, *args],
        input=text.encode() if isinstance(text, str) else text,
        capture_output=True,
        env=edge_environment(**env),
        timeout=timeout,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def shared_cache(factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The body of a fixture: requantised drafts are made once for all tests of a run."""
    folder = factory.getbasetemp() / "specwire-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECWIRE_CACHE", str(folder))
        yield folder


def asking(
    max_tokens: int = 64,
    *,
    mode: Mode = Mode.SYNC,
    gamma: int = 4,
    seed: int = 1,
    stops: tuple[str, ...] = (),
    logprobs: int | None = None,
    verification: Verification = Verification.AUTO,
    temperature: float = 0.0,
    **sampling: float,
) -> GenerateOptions:
    """Options with the sampling parameters among the rest; greedy if none are given."""
    return GenerateOptions(
        sampling=SamplingParams(temperature=temperature, **sampling),  # type: ignore[arg-type]
        max_tokens=max_tokens,
        mode=mode,
        gamma=gamma,
        seed=seed,
        stops=stops,
        logprobs=logprobs,
        verification=verification,
    )


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait until something becomes true; fails the test if it does not."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  (what is watched belongs to other threads)
            await asyncio.sleep(0.01)


async def settled(work: Awaitable[T], timeout_s: float = 120.0) -> T:
    """The result of something that must not hang."""
    async with asyncio.timeout(timeout_s):
        return await work
