"""What the verifier serves, and whether the draft goes with it."""

from __future__ import annotations

import time

from edge_client.client import EdgeClient
from edge_client.doctor.report import Check, Report, failed, failed_with, ok, warning
from edge_client.draft.llama_weights import LlamaWeights
from edge_client.drafter import DraftFrom
from specwire.errors import SpecwireError
from specwire.limits import Limits
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import template_digest

_SHORT_CONTEXT = 1024


def model(served: pb.DescribeResponse) -> Check:
    """The target's name and what it takes."""
    limits = Limits.from_proto(served.limits)
    text = (
        f"{served.model}, {served.vocabulary.size} tokens; context {limits.context}, "
        f"{limits.gamma} draft tokens a proposal, {limits.sessions} sessions"
    )
    if limits.context < _SHORT_CONTEXT:
        return warning("model", text, f"{limits.context} tokens hold a short exchange only")
    return ok("model", text)


def stand_in(server: str, first: pb.DescribeResponse, served: pb.DescribeResponse) -> Check:
    """Whether another verifier can take over from the first."""
    same = served.vocabulary.fingerprint == first.vocabulary.fingerprint
    if same and served.model == first.model:
        return ok("stand-in", f"{server} serves the same")
    what = "another model" if same else "another vocabulary"
    return warning(
        "stand-in",
        f"{server} serves {served.model}, {what} than the first",
        "a text that it takes over would not go on as it began",
    )


async def draft(
    report: Report, client: EdgeClient, spec: str | None, source: DraftFrom
) -> LlamaWeights | None:
    """Load the draft model, if one is set, and say how that went."""
    if source is DraftFrom.LOOKUP:
        report.add(ok("draft", "copied from what was written before; needs no model"))
        return None
    if spec is None:
        report.add(
            warning("draft", "none is set: the target generates alone",
                    "give --draft FILE, a small model of the target's family")
        )  # fmt: skip
        return None
    began = time.perf_counter()
    try:
        weights = await client.load_draft()
    except SpecwireError as error:
        report.add(failed_with("draft", error))
        return None
    assert weights is not None
    report.measured.draft_load_s = time.perf_counter() - began
    size = weights.path.stat().st_size
    report.add(
        ok("draft", f"{weights.name}, {size / 1e6:.0f} MB, "
           f"loaded in {report.measured.draft_load_s:.2f} s")
    )  # fmt: skip
    return weights


def vocabulary(served: pb.DescribeResponse, weights: LlamaWeights) -> Check:
    """Whether draft and target number their tokens alike."""
    ours, theirs = weights.vocabulary.fingerprint, served.vocabulary.fingerprint
    if ours == theirs:
        return ok("vocabulary", f"the same at both ends, {ours.hex()[:16]}…")
    return failed(
        "vocabulary",
        f"draft {weights.name} has {len(weights.vocabulary)} tokens ({ours.hex()[:16]}…), "
        f"target {served.model} {served.vocabulary.size} ({theirs.hex()[:16]}…)",
        "use a draft of the target's family, converted from the same tokenizer",
    )


def template(served: pb.DescribeResponse, weights: LlamaWeights | None) -> Check:
    """Whether chats can be had, and are put the way the draft knows."""
    name = "chat template"
    if not served.chat:
        return warning(
            name, "the target has none: no chat, plain prompts alone",
            "use generate without --chat, or serve an instruction-tuned model",
        )  # fmt: skip
    if weights is None:
        return ok(name, "the target has one")
    digest = template_digest(weights.chat_template) if weights.chat_template else b""
    if digest == served.chat_template_digest:
        return ok(name, "the same at both ends")
    which = "another" if weights.chat_template else "none"
    return warning(
        name,
        f"the draft has {which}; the target's is used for both",
        "fewer drafts may be accepted in chats; a draft of the same release has the same",
    )
