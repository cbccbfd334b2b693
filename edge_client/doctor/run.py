"""The examination from its first check to its advice."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from edge_client import render
from edge_client.client import EdgeClient
from edge_client.credentials import Credentials
from edge_client.doctor import drafting, match, wire
from edge_client.doctor.advice import TYPICAL_ALPHA, Advice, advise, advise_without
from edge_client.doctor.measured import Measured
from edge_client.doctor.reach import reach
from edge_client.doctor.report import Check, Report, State, failed_with, ok, shown, warning
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.drafter import DraftFrom
from edge_client.link import Link
from edge_client.options import GenerateOptions, Mode
from edge_client.progress import Spinner, Teller
from specwire.errors import SpecwireError
from specwire.limits import Limits
from specwire.v1 import verifier_pb2 as pb


class Doctor:
    """Examines one verifier and one draft.

    Args:
        servers: HOST:PORT of each. The first is examined; the others, which take over
            where it fails, are only asked what they serve.
        draft: as for a client; None for none.
        source: where drafts come from.
        threads: of the draft model.
        credentials: TLS and token.
        options: with which it will be used.
    """

    def __init__(
        self,
        servers: Sequence[str],
        draft: str | None,
        source: DraftFrom,
        *,
        threads: int | None,
        credentials: Credentials,
        options: GenerateOptions,
    ) -> None:
        self._server, *self._others = servers
        self._draft = draft
        self._source = source
        self._threads = threads
        self._credentials = credentials
        self._options = options
        self._quiet = True

    def examine(self, *, as_json: bool) -> int:
        """Print what is found as it is found, or all of it as one JSON object; the exit code."""
        self._quiet = as_json
        colour = render.wants_colour(sys.stdout)

        def tell(check: Check) -> None:
            if not as_json:
                print(shown(check, colour=colour), flush=True)

        report = self.measure(tell)
        if as_json:
            render.print_json(report.to_json())
        elif report.advice is not None:
            print("\n".join(["", *advice_lines(report.advice)]), flush=True)
        return report.exit_code

    def measure(self, tell: Callable[[Check], None]) -> Report:
        """What is found, for other programs; `tell` hears of each check as it is done."""
        report = Report(self._server, self._draft, tell)
        asyncio.run(self._examine(report))
        return report

    async def _examine(self, report: Report) -> None:
        teller = Teller(lambda line: None)
        client = EdgeClient(
            self._server,
            draft=self._draft,
            drafts=self._source,
            threads=self._threads,
            credentials=self._credentials,
            notify=teller,
        )
        link = Link(self._server, self._credentials)
        try:
            async with self._doing("connecting", teller):
                served = await reach(report, link, self._credentials)
            if served is not None:
                report.add(match.model(served))
                await self._ask_others(report, served, teller)
            async with self._doing("loading the draft model", teller):
                weights = await match.draft(report, client, self._draft, self._source)
            if served is None:
                return
            fits = weights is not None and report.add(match.vocabulary(served, weights))
            report.add(match.template(served, weights if fits else None))
            usable = weights if fits else None
            await self._measure(report, client, link, served, usable, teller)
            self._advise(report, Limits.from_proto(served.limits))
        finally:
            await link.close()
            await client.aclose()

    async def _ask_others(
        self, report: Report, served: pb.DescribeResponse, teller: Teller
    ) -> None:
        for server in self._others:
            link = Link(server, self._credentials)
            try:
                async with self._doing(f"connecting to {server}", teller):
                    report.add(match.stand_in(server, served, await link.describe()))
            except SpecwireError as error:
                report.add(warning("stand-in", str(error), f"{server} can't take over meanwhile"))
            finally:
                await link.close()

    # --------------------------------------------------------------- measuring

    async def _measure(
        self,
        report: Report,
        client: EdgeClient,
        link: Link,
        served: pb.DescribeResponse,
        weights: LlamaWeights | None,
        teller: Teller,
    ) -> None:
        measured, limits = report.measured, Limits.from_proto(served.limits)
        prompt: list[int] = []
        async with self._trying(report, "round trip", teller):
            measured.rtt = await wire.round_trips(link)
            report.add(ok("round trip", _round_trip(measured)))
        async with self._trying(report, "rate", teller):
            if measured.rtt is not None:
                measured.up_bit_s = await wire.up_rate(
                    self._server, self._credentials, measured.rtt.median_s, limits
                )
                report.add(ok("rate", _rate(measured)))
        async with self._trying(report, "verify time", teller):
            prompt = list(await wire.rounds(link, limits, measured))
            report.add(_verify(measured))
        if weights is not None:
            async with self._trying(report, "draft speed", teller):
                measured.draft_s = await asyncio.to_thread(
                    drafting.draft_time, weights, prompt or [0], self._options, self._threads
                )
                each = measured.draft_s
                text = (
                    f"{1 / max(each, 1e-9):.0f} tokens/s, {each * 1e3:.2f} ms each, on this machine"
                )
                report.add(ok("draft speed", text))
        elif self._source is DraftFrom.LOOKUP:
            measured.draft_s = drafting.LOOKUP_S
        if measured.draft_s is not None and self._options.gamma != 0:
            async with self._trying(report, "acceptance", teller):
                await drafting.acceptance(
                    client, self._options, measured, chat=served.chat, context=limits.context
                )
                report.add(_acceptance(measured, self._source))

    @contextlib.asynccontextmanager
    async def _trying(self, report: Report, name: str, teller: Teller) -> AsyncIterator[None]:
        """What fails within this context is a failed check, and the examination goes on."""
        try:
            async with self._doing(f"measuring: {name}", teller):
                yield
        except SpecwireError as error:
            report.add(failed_with(name, error))

    def _doing(self, what: str, teller: Teller) -> contextlib.AbstractAsyncContextManager[None]:
        return Spinner(lambda: what, quiet=self._quiet).shown(teller)

    # ------------------------------------------------------------------ advice

    def _advise(self, report: Report, limits: Limits) -> None:
        measured, options = report.measured, self._options
        at = measured.conditions(
            draft_s=measured.draft_s or 1e-6, alpha=measured.alpha or TYPICAL_ALPHA
        )
        if at is None:
            return
        why = self._no_drafts(measured)
        if why is not None:
            report.advice = advise_without(
                at, why, most_gamma=limits.gamma, most_window=limits.chain
            )
            return
        report.advice = advise(
            at,
            options.mode,
            gamma=options.gamma,
            most_gamma=limits.gamma,
            most_window=min(options.window or limits.chain, limits.chain),
        )

    def _no_drafts(self, measured: Measured) -> str | None:
        """Why the target will generate alone; None if it won't."""
        if self._options.mode is Mode.STREAM:
            return "--mode stream asks for no drafts"
        if self._options.gamma == 0:
            return "--gamma 0 asks for no drafts"
        if measured.draft_s is None:
            return "there is no draft that can be used"
        if measured.alpha is None:
            return "no draft token was examined"
        return None


def advice_lines(advice: Advice) -> list[str]:
    """What to expect, for a person."""
    chosen = advice.chosen
    drafts = f", γ {chosen.gamma}" if chosen.gamma else ""
    lines = [
        f"will run: {chosen.way}{drafts}, about {chosen.speed:.1f} tokens/s",
        f"because:  {advice.why}",
        "expected: "
        + ", ".join(
            f"{way} {plan.speed:.1f}" + (f" (γ {plan.gamma})" if plan.gamma else "")
            for way, plan in advice.plans.items()
        )
        + " tokens/s",
    ]
    if advice.needed:
        lines.append("drafting would pay with one of these alone:")
        lines += [f"  - {what}" for what in advice.needed]
    elif not advice.pays:
        lines.append("drafting would not pay here by a change of draft or link alone")
    return lines


def _round_trip(measured: Measured) -> str:
    rtt = measured.rtt
    assert rtt is not None
    return (
        f"median {rtt.median_s * 1e3:.1f} ms, {rtt.low_s * 1e3:.1f} to {rtt.high_s * 1e3:.1f} ms "
        f"(10th to 90th percentile of {rtt.count} calls)"
    )


def _rate(measured: Measured) -> str:
    up = measured.up_bit_s
    if up is None:
        shown_up = "up not measured (too fast to tell from a small call)"
    else:
        shown_up = f"up at least {up / 1e6:.1f} Mbit/s" if up < 1e9 else "up at least 1 Gbit/s"
    return f"{shown_up}; down not measured (no call brings enough without work of the model)"


def _verify(measured: Measured) -> Check:
    one, more = measured.forward_s, measured.forward_many_s
    if one is None or more is None:
        return warning(
            "verify time", "not measured: the text ended before", "the target ends texts at once"
        )
    return Check(
        "verify time",
        State.OK,
        f"{one * 1e3:.1f} ms for 1 token, {more * 1e3:.1f} ms for {measured.many + 1}; "
        f"a round's other time {_of(measured)} ms",
    )


def _of(measured: Measured) -> str:
    return f"{measured.round_trip.median_s * 1e3:.1f}" if measured.round_trip is not None else "?"


def _acceptance(measured: Measured, source: DraftFrom) -> Check:
    if measured.alpha is None:
        return warning(
            "acceptance", "not measured: no draft token was examined", "a longer text tells more"
        )
    # Half of a 95 % interval, as if the tokens were independent.
    give = 1.96 * math.sqrt(measured.alpha * (1 - measured.alpha) / max(measured.examined, 1))
    text = f"α {measured.alpha:.2f} ± {give:.2f}, of {measured.examined} draft tokens examined"
    if source is DraftFrom.LOOKUP:
        where = "where the text repeats itself there are drafts: only there the speeds below hold"
        return warning("acceptance", text, where)
    if measured.alpha < 0.4:
        return warning("acceptance", text, "a draft closer to the target would help more")
    return ok("acceptance", text)
