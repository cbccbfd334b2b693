"""One tree of errors, each with the gRPC status it travels as.

    SpecwireError
    ├── BadRequest            INVALID_ARGUMENT     a value is wrong; never retried
    ├── VersionMismatch       FAILED_PRECONDITION  no common protocol version
    ├── VocabularyMismatch    FAILED_PRECONDITION  edge and cloud number tokens differently
    ├── Unconnected           OUT_OF_RANGE         a proposal starts beyond what can be connected
    ├── SessionNotFound       NOT_FOUND            rebuild it with Open, seed and committed ids
    ├── NotOwner              PERMISSION_DENIED    the session is another caller's
    ├── Unauthenticated       UNAUTHENTICATED      no token, or a wrong one
    ├── Exhausted             RESOURCE_EXHAUSTED   a limit is reached; retry later
    ├── Draining              UNAVAILABLE          the verifier stops; resume later or elsewhere
    ├── Superseded            ABORTED              a newer stream took the session over
    ├── TargetFault           DATA_LOSS            the target gave no usable distribution
    ├── Unsupported           UNIMPLEMENTED        this verifier lacks the feature
    ├── LinkError             UNAVAILABLE          (edge) the verifier can't be reached
    ├── Untrusted             UNAUTHENTICATED      (edge) the verifier's certificate won't do
    ├── OtherTarget           FAILED_PRECONDITION  (edge) it serves another model than it did
    ├── ModelError            FAILED_PRECONDITION  a model can't be loaded or used
    └── ProtocolError         INTERNAL             the other end broke the protocol

A message says what was wrong, with what value, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf.message import DecodeError

from specwire.v1 import verifier_pb2 as pb

DETAIL_KEY = "specwire-error-bin"
"""Trailing metadata key that carries a serialised `ErrorDetail`."""


class SpecwireError(Exception):
    """Base of every error that this software raises on purpose.

    `frontier` is the cloud's count of committed tokens where a session is concerned.
    """

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    code: pb.ErrorCode = pb.ERROR_CODE_UNSPECIFIED

    def __init__(self, message: str, *, frontier: int = 0) -> None:
        super().__init__(message)
        self.frontier = frontier

    def detail(self) -> pb.ErrorDetail:
        """What travels beside the status."""
        return pb.ErrorDetail(code=self.code, frontier=self.frontier)


class BadRequest(SpecwireError):
    """A field of the request is wrong; sending it again can't help."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    code = pb.ERROR_CODE_BAD_REQUEST


class VersionMismatch(SpecwireError):
    """The two ends share no protocol version."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    code = pb.ERROR_CODE_VERSION

    def __init__(self, message: str, *, versions: tuple[int, ...] = (), frontier: int = 0) -> None:
        super().__init__(message, frontier=frontier)
        self.versions = versions

    def detail(self) -> pb.ErrorDetail:
        """What travels beside the status: the versions understood."""
        return pb.ErrorDetail(code=self.code, protocol_versions=self.versions)


class VocabularyMismatch(SpecwireError):
    """Draft and target number their tokens differently."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    code = pb.ERROR_CODE_VOCABULARY


class Unconnected(SpecwireError):
    """A proposal starts where no committed or waiting token precedes it."""

    status = grpc.StatusCode.OUT_OF_RANGE
    code = pb.ERROR_CODE_NO_CONNECTION


class SessionNotFound(SpecwireError):
    """No such session here (ended, idle too long, or another server's)."""

    status = grpc.StatusCode.NOT_FOUND
    code = pb.ERROR_CODE_NO_SESSION


class NotOwner(SpecwireError):
    """The session belongs to another caller."""

    status = grpc.StatusCode.PERMISSION_DENIED
    code = pb.ERROR_CODE_NOT_OWNER


class Unauthenticated(SpecwireError):
    """The caller showed no token, or a wrong one."""

    status = grpc.StatusCode.UNAUTHENTICATED
    code = pb.ERROR_CODE_UNAUTHENTICATED


class Exhausted(SpecwireError):
    """A limit of the verifier is reached; a later attempt may succeed."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    code = pb.ERROR_CODE_EXHAUSTED


class Draining(SpecwireError):
    """The verifier is about to stop."""

    status = grpc.StatusCode.UNAVAILABLE
    code = pb.ERROR_CODE_DRAINING


class Superseded(SpecwireError):
    """A newer stream of the same caller continues the session."""

    status = grpc.StatusCode.ABORTED
    code = pb.ERROR_CODE_SUPERSEDED


class TargetFault(SpecwireError):
    """The target model returned NaN or a row without any mass."""

    status = grpc.StatusCode.DATA_LOSS
    code = pb.ERROR_CODE_TARGET_FAULT


class Unsupported(SpecwireError):
    """The verifier does not offer what was asked for."""

    status = grpc.StatusCode.UNIMPLEMENTED
    code = pb.ERROR_CODE_UNSUPPORTED


class LinkError(SpecwireError):
    """The verifier can't be reached, or the link to it broke."""

    status = grpc.StatusCode.UNAVAILABLE


class Untrusted(SpecwireError):
    """What answers has no certificate that proves it to be the verifier; never retried."""

    status = grpc.StatusCode.UNAUTHENTICATED


class OtherTarget(SpecwireError):
    """A verifier serves another target than the one that the text was begun with."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class ModelError(SpecwireError):
    """A model file or folder can't be found, loaded or used."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class ProtocolError(SpecwireError):
    """The other end sent something that the protocol does not allow."""

    status = grpc.StatusCode.INTERNAL


_BY_CODE: Mapping[int, type[SpecwireError]] = {
    cls.code: cls
    for cls in (
        BadRequest,
        VocabularyMismatch,
        Unconnected,
        SessionNotFound,
        NotOwner,
        Unauthenticated,
        Exhausted,
        Draining,
        Superseded,
        TargetFault,
        Unsupported,
    )
}

_BY_STATUS: Mapping[grpc.StatusCode, type[SpecwireError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: BadRequest,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: NotOwner,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Exhausted,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
    grpc.StatusCode.NOT_FOUND: SessionNotFound,
    grpc.StatusCode.UNAVAILABLE: LinkError,
    grpc.StatusCode.DEADLINE_EXCEEDED: LinkError,
}


def from_status(
    status: grpc.StatusCode, message: str, detail: bytes | None = None
) -> SpecwireError:
    """The error that a gRPC status and its `specwire-error-bin` metadata stand for.

    A status without our detail came from gRPC itself or from something between
    the two ends; it maps by status alone, and to `ProtocolError` where none fits.
    """
    if detail is not None:
        try:
            parsed = pb.ErrorDetail.FromString(detail)
        except DecodeError:
            parsed = pb.ErrorDetail()
        if parsed.code == pb.ERROR_CODE_VERSION:
            return VersionMismatch(message, versions=tuple(parsed.protocol_versions))
        known = _BY_CODE.get(parsed.code)
        if known is not None:
            return known(message, frontier=parsed.frontier)
    cls = _BY_STATUS.get(status, ProtocolError)
    return cls(message if cls is not ProtocolError else f"{status.name}: {message}")
