"""The Python API of the edge.

Example:
    client = EdgeClient("127.0.0.1:7710")
    print(client.generate("Once upon a time").text)

    async for token in client.stream(messages=[("user", "Hi")]):
        print(token.text, end="")
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from edge_client import retry
from edge_client.connection import Connector, TargetRoute
from edge_client.credentials import Credentials
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.drafter import Drafter, DraftFrom, draft_from
from edge_client.generation import Generation, opening_frame
from edge_client.loops import LoopLinks
from edge_client.options import GenerateOptions, Mode
from edge_client.policy.estimates import LinkEstimates
from edge_client.remote import RemoteVerifiers
from edge_client.result import Result, Status, Token
from specwire.errors import BadRequest, OtherTarget, VersionMismatch, VocabularyMismatch
from specwire.limits import PROTOCOL_VERSIONS, Limits
from specwire.v1 import verifier_pb2 as pb

logger = logging.getLogger(__name__)

Messages = Sequence[tuple[str, str]]


class TokenStream:
    """An answer under way: iterate over its tokens, then read `result`.

    `result` is filled as tokens come and complete when the iteration is over.
    """

    def __init__(self, start: Callable[[TokenStream], AsyncIterator[Token]]) -> None:
        self._start = start
        self.result = Result()
        self._generation: Generation | None = None

    @property
    def status(self) -> Status | None:
        """How it is going; None before the verifier was asked."""
        return self._generation.status() if self._generation is not None else None

    def __aiter__(self) -> AsyncIterator[Token]:
        return self._start(self)


class EdgeClient:
    """Generates with a target in the cloud and a draft on this machine.

    May be made anywhere and used from any thread and event loop, by several
    generations at once. The draft model is loaded by the first that needs it. What it
    measures of the link and of both models' speed is kept from one generation to the
    next, so that the policy chooses better from the start; what it learns of a text is not.

    Args:
        server: HOST:PORT of a verifier, or of several in the order in which they are tried,
            or another way to a target.
        draft: a GGUF file, "builtin:smollm2", "builtin:smollm2-q2", or None for none.
        drafts: where they come from: "model", "lookup" (what was written before; needs no
            model), or "auto", the first that is likely to be right.
        threads: of the draft model; None lets the machine decide.
        credentials: TLS and token; None for plain text without one.
        notify: called with one line for a person: progress and what went wrong.

    Raises:
        BadRequest: a value is out of range or unknown, or the credentials don't suit the server.
    """

    def __init__(
        self,
        server: str | Sequence[str] | Connector,
        *,
        draft: str | None = None,
        drafts: str = DraftFrom.AUTO,
        threads: int | None = None,
        credentials: Credentials | None = None,
        notify: Callable[[str], None] = logger.warning,
    ) -> None:
        self._connector = _connector(server, credentials)
        self._notify = notify
        self._drafter = Drafter(
            draft,
            draft_from(drafts),
            threads=threads,
            place=self._connector.place,
            estimates=LinkEstimates(taking_turns=self._connector.shares_cores),
            notify=notify,
        )
        self._links = LoopLinks(self._connector)

    @classmethod
    def local(
        cls,
        target: str,
        *,
        draft: str | None = None,
        drafts: str = DraftFrom.AUTO,
        threads: int | None = None,
        context: int | None = None,
        notify: Callable[[str], None] = logger.warning,
    ) -> Self:
        """A client whose target runs on this machine too, in llama.cpp, without a network.

        Both models take turns on the same cores: `Mode.AUTO` is `Mode.SYNC` here, and
        goes without drafts where they don't pay.

        Args:
            target: a GGUF file, or "builtin:smollm2". Loaded by the first that needs it.
            draft: as for a client of a verifier.
            drafts: as for a client of a verifier.
            threads: of each model; None lets the machine decide.
            context: most tokens of prompt and output; None for 4096, or fewer where the
                target was trained for fewer.
            notify: as for a client of a verifier.

        Raises:
            BadRequest: `context` is below 1, or `threads` is out of range.
        """
        from edge_client.local.device import TargetDevice
        from edge_client.local.pair import OnDevicePair

        device = TargetDevice(
            target,
            threads=threads,
            context=context,
            drafted_for=draft is not None or drafts == DraftFrom.LOOKUP,
            progress=notify,
        )
        return cls(OnDevicePair(device), draft=draft, drafts=drafts, threads=threads, notify=notify)

    # ------------------------------------------------------------ generating

    def stream(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
        options: GenerateOptions | None = None,
        provisional: Callable[[str], None] | None = None,
    ) -> TokenStream:
        """Tokens of an answer, to be iterated over in a coroutine.

        Args:
            prompt: text, or token ids as they are. Either this or `messages`.
            messages: (role, content) pairs, put through the target's chat template.
            options: how to generate.
            provisional: with `options.offline_tail`, hears on the event loop what the draft
                expects to follow while the link is lost: all of that text whenever it has
                grown, and "" when it is withdrawn, before committed tokens come.

        Raises:
            BadRequest: there is not exactly one prompt.
            SpecwireError: (while iterating) the verifier refused or can't be reached.
        """
        if (prompt is None) == (messages is None):
            raise BadRequest("give either a prompt or messages")
        chosen = options or GenerateOptions()
        return TokenStream(
            lambda stream: self._tokens(stream, prompt, messages, chosen, provisional)
        )

    async def complete(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
        options: GenerateOptions | None = None,
    ) -> Result:
        """The whole answer at once; arguments and errors as `stream`."""
        stream = self.stream(prompt, messages=messages, options=options)
        async for _ in stream:
            pass
        return stream.result

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
        options: GenerateOptions | None = None,
    ) -> Result:
        """`complete` without a coroutine: from a script, a thread or a notebook."""
        return self._links.run(self.complete(prompt, messages=messages, options=options))

    async def describe(self, policy: retry.RetryPolicy = retry.CONNECT) -> pb.DescribeResponse:
        """What the verifier serves: its model, limits and features. Asked anew each time.

        Raises:
            SpecwireError: it can't be reached, or refuses.
        """
        return await self._served(self._links.here().describe, policy)

    async def _served(
        self, ask: Callable[[], Awaitable[pb.DescribeResponse]], policy: retry.RetryPolicy
    ) -> pb.DescribeResponse:
        served = await retry.retrying(
            policy,
            ask,
            lambda error, wait: self._notify(f"{error}; next attempt in {wait:.1f} s"),
        )
        _check_versions(served)
        return served

    async def load_draft(self) -> LlamaWeights | None:
        """The draft model, loaded if it is not yet; None if none is set.

        Raises:
            ModelError: it can't be loaded.
        """
        drafter = self._drafter
        if drafter.spec is None or not drafter.needs_model:
            return None
        return await drafter.loaded()

    @property
    def copies_drafts(self) -> bool:
        """Whether drafts are copied from what was written before, without a model."""
        return not self._drafter.needs_model

    async def _tokens(
        self,
        stream: TokenStream,
        prompt: str | Sequence[int] | None,
        messages: Messages | None,
        options: GenerateOptions,
        provisional: Callable[[str], None] | None,
    ) -> AsyncIterator[Token]:
        began = time.perf_counter()
        notices: list[str] = []

        def notify(line: str) -> None:
            notices.append(line)
            self._notify(line)

        for last in (False, True):
            route = self._links.here().route(notify)
            generation = await self._prepared(
                route, prompt, messages, options, notify, provisional, began
            )
            stream._generation = generation
            stream.result = generation.result
            stream.result.notices = notices
            try:
                # Closed with this iteration, so that who leaves early ends the session too.
                async with contextlib.aclosing(aiter(generation)) as tokens:
                    async for token in tokens:
                        yield token
                return
            except (VersionMismatch, VocabularyMismatch, OtherTarget):
                # What was known of the verifier may be out of date: ask it, and begin anew.
                if last or generation.opened:
                    raise

    async def _prepared(
        self,
        route: TargetRoute,
        prompt: str | Sequence[int] | None,
        messages: Messages | None,
        options: GenerateOptions,
        notify: Callable[[str], None],
        provisional: Callable[[str], None] | None,
        began: float,
    ) -> Generation:
        """A generation that suits what the verifier serves."""
        served = await self._served(route.describe, retry.CONNECT)
        draft = await self._drafter.side(served, options, notify, by_template=messages is not None)
        if draft is None:
            _tell_what_is_in_vain(options, notify)
            if options.mode is not Mode.STREAM:
                options = replace(options, mode=Mode.TARGET_ONLY)
        limits = Limits.from_proto(served.limits)
        if draft is not None and options.mode is not Mode.AUTO:
            _tell_of_limit(options.gamma, min(limits.gamma, limits.chain), notify)
        vocabulary = draft.vocabulary if draft is not None else None
        opening = opening_frame(
            options,
            fingerprint=served.vocabulary.fingerprint,
            return_text=vocabulary is None,
        )
        _set_prompt(opening, prompt, messages)
        return Generation(
            route,
            opening,
            options,
            draft=draft,
            limits=limits,
            notify=notify,
            provisional=provisional,
            began=began,
        )

    # ---------------------------------------------------------------- closing

    async def aclose(self) -> None:
        """Close the running loop's link, and the draft."""
        await self._links.leave()
        await asyncio.to_thread(self._close_models)

    def close(self) -> None:
        """Close what `generate` used, and the draft."""
        self._links.close()
        self._close_models()

    def _close_models(self) -> None:
        self._drafter.close()
        self._connector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def _connector(
    server: str | Sequence[str] | Connector, credentials: Credentials | None
) -> Connector:
    if isinstance(server, str):
        return RemoteVerifiers([server], credentials)
    if isinstance(server, Sequence):
        return RemoteVerifiers(server, credentials)
    if credentials is not None:
        raise BadRequest("credentials are for a verifier at an address")
    return server


def _check_versions(served: pb.DescribeResponse) -> None:
    if not set(served.protocol_versions) & set(PROTOCOL_VERSIONS):
        theirs = ", ".join(map(str, served.protocol_versions)) or "none"
        ours = ", ".join(map(str, PROTOCOL_VERSIONS))
        raise VersionMismatch(
            f"the verifier speaks protocol version {theirs}, this client version {ours}; "
            "install matching releases of specwire at both ends",
            versions=tuple(served.protocol_versions),
        )


def _tell_what_is_in_vain(options: GenerateOptions, notify: Callable[[str], None]) -> None:
    if options.record:
        notify("nothing is recorded: without a draft nothing is measured of it")
    if options.offline_tail:
        notify("without a draft nothing goes on while the link is lost")


def _tell_of_limit(gamma: int | None, most: int, notify: Callable[[str], None]) -> None:
    if gamma is not None and gamma > most:
        notify(
            f"gamma {gamma} is more than the verifier allows; proposals hold {most} draft tokens"
        )


def _set_prompt(
    opening: pb.Open, prompt: str | Sequence[int] | None, messages: Messages | None
) -> None:
    if messages is not None:
        try:
            for role, content in messages:
                opening.chat.messages.add(role=role, content=content)
        except (TypeError, ValueError) as error:
            raise BadRequest(f"messages must be pairs of role and content: {error}") from error
        return
    try:
        if isinstance(prompt, str):
            opening.text = prompt
        elif prompt is not None:
            opening.ids.ids.extend(prompt)
    except (TypeError, ValueError) as error:
        raise BadRequest(f"the prompt must be text or token ids: {error}") from error
