"""The real servicer without gRPC around it: calls are made in the process, and counted."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.message import DecodeError, Message

from cloud_verifier.engine import Engine
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.service import Context, VerifierService
from specwire.errors import DETAIL_KEY
from specwire.limits import Limits
from specwire.ports import PromptEncoder
from specwire.v1 import verifier_pb2 as pb
from tests.support.tables import LetterEncoder, TableBackend, random_table

SIZE = 6
CONTEXT = 48
LIMITS = Limits(
    context=CONTEXT, gamma=4, chain=8, sessions=64, stops=3, stop_bytes=8, logprobs=3, max_tokens=64
)
SEEDS = Path(__file__).parent / "seeds"

NEVER = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


class FakeContext:
    """As much of a servicer context as the service uses."""

    def __init__(self) -> None:
        self.status = grpc.StatusCode.OK
        self.message = ""
        self.detail: pb.ErrorDetail | None = None

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        self.status, self.message = code, details
        for key, value in trailing_metadata:
            if key == DETAIL_KEY:
                self.detail = pb.ErrorDetail.FromString(value)
        raise grpc.aio.AbortError

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


@dataclass
class Answer:
    """What a call came to. taken: frames of the request that the service read."""

    status: grpc.StatusCode
    message: str
    frames: list[Any]
    taken: int

    @property
    def opened(self) -> pb.Opened | None:
        """The opening reply in it."""
        for frame in self.frames:
            if isinstance(frame, pb.CloudFrame) and frame.WhichOneof("kind") == "opened":
                return frame.opened
            if isinstance(frame, pb.VerifyResponse) and frame.HasField("opened"):
                return frame.opened
        return None


REQUESTS: dict[str, type[Message]] = {
    "Decode": pb.EdgeFrame,
    "Verify": pb.VerifyRequest,
    "Generate": pb.Open,
    "Close": pb.CloseRequest,
}


@dataclass
class Verifier:
    """A verifier that is called directly; everything it said is checked."""

    backend: Any = field(
        default_factory=lambda: TableBackend(random_table(SIZE, seed=5), context=CONTEXT)
    )
    encoder: PromptEncoder = field(default_factory=LetterEncoder)
    statuses: Counter[grpc.StatusCode] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(Engine(self.backend), LIMITS)
        self.service = VerifierService(self.backend, self.encoder, self.scheduler, LIMITS)

    async def __aenter__(self) -> Verifier:
        self.scheduler.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.scheduler.stop()

    async def call(self, method: str, raw: Sequence[bytes]) -> Answer:
        """Make a call with serialised frames; those of a stream are read one by one.

        Raises:
            AssertionError: it failed in a way that no request may cause.
        """
        context, taken = FakeContext(), 0
        frames: list[Any] = []

        async def requests() -> AsyncIterator[Any]:
            nonlocal taken
            for item in raw:
                taken += 1
                yield REQUESTS[method].FromString(item)

        made = cast("Context", context)
        with contextlib.suppress(grpc.aio.AbortError):
            if method == "Decode":
                async for frame in self.service.Decode(requests(), made):
                    frames.append(frame)  # noqa: PERF401  (what came before a failure counts)
            else:
                taken = 1
                try:
                    request: Any = REQUESTS[method].FromString(raw[0])
                except DecodeError:  # gRPC's matter: the service is never called
                    return Answer(grpc.StatusCode.INVALID_ARGUMENT, "", [], 1)
                if method == "Generate":
                    async for frame in self.service.Generate(request, made):
                        frames.append(frame)  # noqa: PERF401
                elif method == "Verify":
                    frames.append(await self.service.Verify(request, made))
                else:
                    frames.append(await self.service.Close(request, made))
        self.statuses[context.status] += 1
        assert context.status not in NEVER, context.message
        if context.status is not grpc.StatusCode.OK:
            assert context.detail is not None
            assert context.detail.code != pb.ERROR_CODE_UNSPECIFIED
            assert context.message
        for frame in frames:
            frame.SerializeToString()
        return Answer(context.status, context.message, frames, taken)


Calls = list[tuple[str, list[bytes]]]


def save(name: str, calls: Calls) -> None:
    """Keep calls that found something as a regression case."""
    SEEDS.mkdir(exist_ok=True)
    listed = [{"call": method, "frames": [item.hex() for item in raw]} for method, raw in calls]
    (SEEDS / f"{name}.json").write_text(json.dumps(listed, indent=1) + "\n")


def load(path: Path) -> Calls:
    """Calls that were kept."""
    listed = json.loads(path.read_text())
    return [(item["call"], [bytes.fromhex(raw) for raw in item["frames"]]) for item in listed]


def seeds(pattern: str = "*") -> Iterable[Path]:
    """Files of kept calls."""
    return sorted(SEEDS.glob(f"{pattern}.json"))
