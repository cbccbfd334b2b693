"""What the messages weigh of a client that makes a call of its own for each token."""

from __future__ import annotations

from netsim.links import CALL_DOWN_BYTES, CALL_UP_BYTES
from specwire.cloud_session import CloudSession
from specwire.v1 import verifier_pb2 as pb


def asked_bytes(session_id: bytes, proposal: pb.Proposal) -> int:
    """A call for a token."""
    request = pb.VerifyRequest(session_id=session_id, frontier=proposal.start, proposal=proposal)
    return request.ByteSize() + CALL_UP_BYTES


def answered_bytes(session: CloudSession, frame: pb.CloudFrame) -> int:
    """Its answer. The end of the session is part of the last one."""
    response = pb.VerifyResponse(frontier=session.frontier)
    if frame.HasField("finished"):
        response.finished.CopyFrom(frame.finished)
        return response.ByteSize()
    response.committed.CopyFrom(session.committed_from(frame.verdict.start))
    response.verdict.CopyFrom(frame.verdict)
    return response.ByteSize() + CALL_DOWN_BYTES
