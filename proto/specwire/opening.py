"""What happens before a session: the target describes itself, and a prompt becomes ids."""

from __future__ import annotations

from specwire import __version__
from specwire.errors import BadRequest
from specwire.limits import PROTOCOL_VERSIONS, Limits
from specwire.ports import PromptEncoder
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

BYTES_A_TOKEN = 32
"""Text longer than the longest prompt times this is refused before it is tokenized."""


def describe(
    model: str, vocabulary: Vocabulary, encoder: PromptEncoder, limits: Limits
) -> pb.DescribeResponse:
    """What a target offers, whoever runs it with this software."""
    info = pb.VocabularyInfo(
        size=len(vocabulary),
        fingerprint=vocabulary.fingerprint,
        end_ids=sorted(vocabulary.end_ids),
    )
    if vocabulary.bos_id is not None:
        info.bos_id = vocabulary.bos_id
    return pb.DescribeResponse(
        protocol_versions=PROTOCOL_VERSIONS,
        model=model,
        vocabulary=info,
        limits=limits.to_proto(),
        modes=[pb.VERIFICATION_MODE_REJECTION, pb.VERIFICATION_MODE_COUPLED],
        pacings=[pb.PACING_WAIT, pb.PACING_RUN_AHEAD],
        codecs=[pb.Q_CODEC_POINT, pb.Q_CODEC_SPARSE, pb.Q_CODEC_DENSE],
        sampling=pb.SamplingFeatures(
            top_k=True, top_p=True, min_p=True, penalties=True, logprobs=True
        ),
        chat=encoder.has_chat_template,
        chat_template_digest=encoder.chat_template_digest,
        server_version=__version__,
    )


def check_length(frame: pb.Open, limits: Limits) -> None:
    """Refuse text that can't fit before a tokenizer spends time on it.

    Raises:
        BadRequest: it has too many bytes for the longest prompt.
    """
    size = len(frame.text.encode()) + sum(len(m.content.encode()) for m in frame.chat.messages)
    tokens = min(limits.prompt or limits.context, limits.context)
    if size > tokens * BYTES_A_TOKEN:
        raise BadRequest(
            f"the prompt's text has {size} bytes, too much for the {tokens} tokens that a "
            "prompt may have here; shorten it"
        )


def prompt_ids(frame: pb.Open, encoder: PromptEncoder) -> list[int]:
    """The prompt of an Open frame as ids.

    Raises:
        BadRequest: there is none, or it can't be encoded.
    """
    kind = frame.WhichOneof("prompt")
    if kind == "ids":
        return list(frame.ids.ids)
    if kind == "text":
        return encoder.encode_text(frame.text)
    if kind == "chat":
        messages = [(m.role, m.content) for m in frame.chat.messages]
        if not messages:
            raise BadRequest("chat holds no messages; send at least one")
        return encoder.encode_chat(messages)
    raise BadRequest("Open has no prompt; send ids, text or chat")
