"""What the messages weigh of a client that makes a call of its own for each token."""

from __future__ import annotations

from collections.abc import Sequence

from netsim.links import CALL_DOWN_BYTES, CALL_UP_BYTES
from specwire.cloud_session import CloudSession
from specwire.v1 import verifier_pb2 as pb


def asked_bytes(session_id: bytes, proposal: pb.Proposal) -> int:
    """A call for a token."""
    request = pb.VerifyRequest(session_id=session_id, frontier=proposal.start, proposal=proposal)
    return request.ByteSize() + CALL_UP_BYTES


def answered_bytes(session: CloudSession, frames: Sequence[pb.CloudFrame]) -> int:
    """Its answer: a verdict, and the end of the session if there it has ended."""
    verdict = frames[0].verdict
    response = pb.VerifyResponse(
        committed=session.committed_from(verdict.start),
        verdict=verdict,
        frontier=session.frontier,
    )
    if len(frames) > 1:
        response.finished.CopyFrom(frames[1].finished)
    return response.ByteSize() + CALL_DOWN_BYTES
