"""The tree of errors: what its docstring draws, and what survives the wire."""

from __future__ import annotations

import re

import grpc
import pytest

from specwire import errors
from specwire.errors import (
    LinkError,
    ModelError,
    OtherTarget,
    ProtocolError,
    SpecwireError,
    Untrusted,
    VersionMismatch,
    from_status,
)
from specwire.v1 import verifier_pb2 as pb

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, SpecwireError) and value is not SpecwireError
]
LOCAL = (LinkError, ModelError, OtherTarget, ProtocolError, Untrusted)
"""Raised at one end and never sent."""


def test_the_documented_tree_is_the_real_one() -> None:
    drawn = re.findall(r"[├└]── (\w+) +([A-Z_]+)  ", errors.__doc__ or "")
    real = [(cls.__name__, cls.status.name) for cls in CLASSES]
    assert sorted(drawn) == sorted(real)
    assert all(cls.__bases__ == (SpecwireError,) for cls in CLASSES)


def test_every_code_of_the_protocol_has_one_class() -> None:
    codes = [cls.code for cls in CLASSES if cls not in LOCAL]
    assert sorted(codes) == sorted(set(pb.ErrorCode.values()) - {pb.ERROR_CODE_UNSPECIFIED})


@pytest.mark.parametrize("cls", [c for c in CLASSES if c not in LOCAL], ids=lambda c: c.__name__)
def test_errors_survive_the_wire(cls: type[SpecwireError]) -> None:
    error = cls("what was wrong", frontier=17)
    back = from_status(error.status, str(error), error.detail().SerializeToString())
    assert type(back) is cls
    assert str(back) == "what was wrong"
    if cls is not VersionMismatch:
        assert back.frontier == 17


def test_versions_survive_the_wire() -> None:
    error = VersionMismatch("no", versions=(1, 2))
    back = from_status(error.status, "no", error.detail().SerializeToString())
    assert isinstance(back, VersionMismatch) and back.versions == (1, 2)


@pytest.mark.parametrize("cls", [LinkError, ProtocolError])
def test_a_status_alone_is_enough_for_faults_of_the_link(cls: type[SpecwireError]) -> None:
    assert type(from_status(cls.status, "gone")) is cls


@pytest.mark.parametrize("status", list(grpc.StatusCode))
@pytest.mark.parametrize(
    "detail",
    [None, b"", b"\xff\xff\xff", b"\x08\x63"],
    ids=["none", "empty", "garbage", "unknown code"],
)
def test_a_status_from_elsewhere_maps_by_itself(
    status: grpc.StatusCode, detail: bytes | None
) -> None:
    """Proxies and gRPC itself speak too; garbage in the metadata is no reason to crash."""
    error = from_status(status, "text", detail)
    assert "text" in str(error)
    if isinstance(error, ProtocolError):
        assert status.name in str(error)
    else:
        assert error.status == status or status is grpc.StatusCode.DEADLINE_EXCEEDED


def test_unavailable_without_detail_is_the_link() -> None:
    assert type(from_status(grpc.StatusCode.UNAVAILABLE, "x")) is LinkError
    assert type(from_status(grpc.StatusCode.DEADLINE_EXCEEDED, "x")) is LinkError
