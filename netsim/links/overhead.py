"""What a protobuf message weighs on the wire: the layers between it and TCP.

    gRPC      5 bytes   compressed flag and length, before each message
    HTTP/2    9 bytes   header of the DATA frame that carries it (RFC 9113, 4.1)
    TLS 1.3  22 bytes   record header 5, content type 1, AES-GCM tag 16 (RFC 8446, 5.2)

gRPC's core sends other frames along with a message, in the same record:

    26 bytes        two WINDOW_UPDATEs, if something has arrived since the last message
    43 bytes up     of a call with one message each way: HEADERS of 8, two WINDOW_UPDATEs;
    50 bytes down   HEADERS of 3 and of 16 (the trailers), a WINDOW_UPDATE. So it is from the
                    second call on, when HPACK's tables know the fields.

TCP and IP headers are added by each segment: see `Direction.header_bytes`.
"""

from __future__ import annotations

GRPC_BYTES = 5
HTTP2_BYTES = 9
TLS_BYTES = 22
WINDOW_BYTES = 26
CALL_UP_BYTES = 43
CALL_DOWN_BYTES = 50
HTTP2_FRAME = 16384
"""Largest DATA frame, and payload of a TLS record, by default: longer messages take several."""


def wire_bytes(payload: int, *, tls: bool = True) -> int:
    """Bytes that a message of `payload` bytes is as TCP payload."""
    frames = 1 + (payload + GRPC_BYTES - 1) // HTTP2_FRAME
    return payload + GRPC_BYTES + frames * (HTTP2_BYTES + (TLS_BYTES if tls else 0))
