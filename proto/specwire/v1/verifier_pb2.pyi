from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerificationMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFICATION_MODE_UNSPECIFIED: _ClassVar[VerificationMode]
    VERIFICATION_MODE_REJECTION: _ClassVar[VerificationMode]
    VERIFICATION_MODE_COUPLED: _ClassVar[VerificationMode]

class Pacing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PACING_UNSPECIFIED: _ClassVar[Pacing]
    PACING_WAIT: _ClassVar[Pacing]
    PACING_RUN_AHEAD: _ClassVar[Pacing]

class QCodec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Q_CODEC_UNSPECIFIED: _ClassVar[QCodec]
    Q_CODEC_POINT: _ClassVar[QCodec]
    Q_CODEC_SPARSE: _ClassVar[QCodec]
    Q_CODEC_DENSE: _ClassVar[QCodec]

class TokenKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_KIND_UNSPECIFIED: _ClassVar[TokenKind]
    TOKEN_KIND_CORRECTION: _ClassVar[TokenKind]
    TOKEN_KIND_BONUS: _ClassVar[TokenKind]
    TOKEN_KIND_RUN_AHEAD: _ClassVar[TokenKind]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_END_TOKEN: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CLOSED: _ClassVar[FinishReason]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_REQUEST: _ClassVar[ErrorCode]
    ERROR_CODE_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_VOCABULARY: _ClassVar[ErrorCode]
    ERROR_CODE_NO_CONNECTION: _ClassVar[ErrorCode]
    ERROR_CODE_NO_SESSION: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_OWNER: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_EXHAUSTED: _ClassVar[ErrorCode]
    ERROR_CODE_DRAINING: _ClassVar[ErrorCode]
    ERROR_CODE_SUPERSEDED: _ClassVar[ErrorCode]
    ERROR_CODE_TARGET_FAULT: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED: _ClassVar[ErrorCode]
VERIFICATION_MODE_UNSPECIFIED: VerificationMode
VERIFICATION_MODE_REJECTION: VerificationMode
VERIFICATION_MODE_COUPLED: VerificationMode
PACING_UNSPECIFIED: Pacing
PACING_WAIT: Pacing
PACING_RUN_AHEAD: Pacing
Q_CODEC_UNSPECIFIED: QCodec
Q_CODEC_POINT: QCodec
Q_CODEC_SPARSE: QCodec
Q_CODEC_DENSE: QCodec
TOKEN_KIND_UNSPECIFIED: TokenKind
TOKEN_KIND_CORRECTION: TokenKind
TOKEN_KIND_BONUS: TokenKind
TOKEN_KIND_RUN_AHEAD: TokenKind
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_END_TOKEN: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CLOSED: FinishReason
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_BAD_REQUEST: ErrorCode
ERROR_CODE_VERSION: ErrorCode
ERROR_CODE_VOCABULARY: ErrorCode
ERROR_CODE_NO_CONNECTION: ErrorCode
ERROR_CODE_NO_SESSION: ErrorCode
ERROR_CODE_NOT_OWNER: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode
ERROR_CODE_EXHAUSTED: ErrorCode
ERROR_CODE_DRAINING: ErrorCode
ERROR_CODE_SUPERSEDED: ErrorCode
ERROR_CODE_TARGET_FAULT: ErrorCode
ERROR_CODE_UNSUPPORTED: ErrorCode

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol_versions", "model", "vocabulary", "limits", "modes", "pacings", "codecs", "sampling", "chat", "server_version", "chat_template_digest")
    PROTOCOL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    PACINGS_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    protocol_versions: _containers.RepeatedScalarFieldContainer[int]
    model: str
    vocabulary: VocabularyInfo
    limits: Limits
    modes: _containers.RepeatedScalarFieldContainer[VerificationMode]
    pacings: _containers.RepeatedScalarFieldContainer[Pacing]
    codecs: _containers.RepeatedScalarFieldContainer[QCodec]
    sampling: SamplingFeatures
    chat: bool
    server_version: str
    chat_template_digest: bytes
    def __init__(self, protocol_versions: _Optional[_Iterable[int]] = ..., model: _Optional[str] = ..., vocabulary: _Optional[_Union[VocabularyInfo, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., modes: _Optional[_Iterable[_Union[VerificationMode, str]]] = ..., pacings: _Optional[_Iterable[_Union[Pacing, str]]] = ..., codecs: _Optional[_Iterable[_Union[QCodec, str]]] = ..., sampling: _Optional[_Union[SamplingFeatures, _Mapping]] = ..., chat: bool = ..., server_version: _Optional[str] = ..., chat_template_digest: _Optional[bytes] = ...) -> None: ...

class VocabularyInfo(_message.Message):
    __slots__ = ("size", "fingerprint", "end_ids", "bos_id")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    END_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_ID_FIELD_NUMBER: _ClassVar[int]
    size: int
    fingerprint: bytes
    end_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_id: int
    def __init__(self, size: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., end_ids: _Optional[_Iterable[int]] = ..., bos_id: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("context", "gamma", "chain", "message_bytes", "sessions", "idle_s", "stops", "stop_bytes", "logprobs", "max_tokens", "sessions_per_client", "prompt", "requests_per_s")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    STOP_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_PER_CLIENT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    context: int
    gamma: int
    chain: int
    message_bytes: int
    sessions: int
    idle_s: float
    stops: int
    stop_bytes: int
    logprobs: int
    max_tokens: int
    sessions_per_client: int
    prompt: int
    requests_per_s: float
    def __init__(self, context: _Optional[int] = ..., gamma: _Optional[int] = ..., chain: _Optional[int] = ..., message_bytes: _Optional[int] = ..., sessions: _Optional[int] = ..., idle_s: _Optional[float] = ..., stops: _Optional[int] = ..., stop_bytes: _Optional[int] = ..., logprobs: _Optional[int] = ..., max_tokens: _Optional[int] = ..., sessions_per_client: _Optional[int] = ..., prompt: _Optional[int] = ..., requests_per_s: _Optional[float] = ...) -> None: ...

class SamplingFeatures(_message.Message):
    __slots__ = ("top_k", "top_p", "min_p", "penalties", "logprobs")
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PENALTIES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    top_k: bool
    top_p: bool
    min_p: bool
    penalties: bool
    logprobs: bool
    def __init__(self, top_k: bool = ..., top_p: bool = ..., min_p: bool = ..., penalties: bool = ..., logprobs: bool = ...) -> None: ...

class EdgeFrame(_message.Message):
    __slots__ = ("open", "resume", "proposal")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    open: Open
    resume: Resume
    proposal: Proposal
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ...) -> None: ...

class CloudFrame(_message.Message):
    __slots__ = ("opened", "verdict", "finished")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    verdict: Verdict
    finished: Finished
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol_version", "ids", "text", "chat", "sampling", "seed", "max_tokens", "stops", "mode", "pacing", "logprobs", "vocabulary_fingerprint", "committed", "open_key", "return_text")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PACING_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    OPEN_KEY_FIELD_NUMBER: _ClassVar[int]
    RETURN_TEXT_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    ids: TokenIds
    text: str
    chat: Chat
    sampling: Sampling
    seed: int
    max_tokens: int
    stops: _containers.RepeatedScalarFieldContainer[str]
    mode: VerificationMode
    pacing: Pacing
    logprobs: int
    vocabulary_fingerprint: bytes
    committed: TokenIds
    open_key: bytes
    return_text: bool
    def __init__(self, protocol_version: _Optional[int] = ..., ids: _Optional[_Union[TokenIds, _Mapping]] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stops: _Optional[_Iterable[str]] = ..., mode: _Optional[_Union[VerificationMode, str]] = ..., pacing: _Optional[_Union[Pacing, str]] = ..., logprobs: _Optional[int] = ..., vocabulary_fingerprint: _Optional[bytes] = ..., committed: _Optional[_Union[TokenIds, _Mapping]] = ..., open_key: _Optional[bytes] = ..., return_text: bool = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("protocol_version", "session_id", "frontier")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    session_id: bytes
    frontier: int
    def __init__(self, protocol_version: _Optional[int] = ..., session_id: _Optional[bytes] = ..., frontier: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session_id", "seed", "prompt", "prompt_length", "committed", "frontier", "verdict", "highest_chain", "model", "max_frontier")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_CHAIN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_FRONTIER_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    seed: int
    prompt: TokenIds
    prompt_length: int
    committed: Committed
    frontier: int
    verdict: int
    highest_chain: int
    model: str
    max_frontier: int
    def __init__(self, session_id: _Optional[bytes] = ..., seed: _Optional[int] = ..., prompt: _Optional[_Union[TokenIds, _Mapping]] = ..., prompt_length: _Optional[int] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., frontier: _Optional[int] = ..., verdict: _Optional[int] = ..., highest_chain: _Optional[int] = ..., model: _Optional[str] = ..., max_frontier: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("start", "tokens", "logprobs", "text")
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    start: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    text: bytes
    def __init__(self, start: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., text: _Optional[bytes] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("number", "chain", "start", "tokens", "point", "sparse", "dense", "continues", "pacing", "parents")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    PACING_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    chain: int
    start: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    point: PointQ
    sparse: SparseQ
    dense: DenseQ
    continues: bool
    pacing: Pacing
    parents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., chain: _Optional[int] = ..., start: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., point: _Optional[_Union[PointQ, _Mapping]] = ..., sparse: _Optional[_Union[SparseQ, _Mapping]] = ..., dense: _Optional[_Union[DenseQ, _Mapping]] = ..., continues: bool = ..., pacing: _Optional[_Union[Pacing, str]] = ..., parents: _Optional[_Iterable[int]] = ...) -> None: ...

class PointQ(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SparseQ(_message.Message):
    __slots__ = ("weight_bits", "rows")
    WEIGHT_BITS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    weight_bits: int
    rows: bytes
    def __init__(self, weight_bits: _Optional[int] = ..., rows: _Optional[bytes] = ...) -> None: ...

class DenseQ(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    def __init__(self, rows: _Optional[bytes] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("number", "start", "chain", "examined", "accepted", "token", "kind", "logprobs", "text", "queue_us", "forward_us", "proposal", "evaluated", "held_us")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    HELD_US_FIELD_NUMBER: _ClassVar[int]
    number: int
    start: int
    chain: int
    examined: int
    accepted: int
    token: int
    kind: TokenKind
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    text: bytes
    queue_us: int
    forward_us: int
    proposal: int
    evaluated: int
    held_us: int
    def __init__(self, number: _Optional[int] = ..., start: _Optional[int] = ..., chain: _Optional[int] = ..., examined: _Optional[int] = ..., accepted: _Optional[int] = ..., token: _Optional[int] = ..., kind: _Optional[_Union[TokenKind, str]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., text: _Optional[bytes] = ..., queue_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., proposal: _Optional[int] = ..., evaluated: _Optional[int] = ..., held_us: _Optional[int] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "frontier", "usage", "stop_index")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    STOP_INDEX_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    frontier: int
    usage: Usage
    stop_index: int
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., frontier: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., stop_index: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "output_tokens", "rounds", "examined", "accepted", "cached_prompt_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    output_tokens: int
    rounds: int
    examined: int
    accepted: int
    cached_prompt_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., rounds: _Optional[int] = ..., examined: _Optional[int] = ..., accepted: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("open", "session_id", "frontier", "proposal")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    open: Open
    session_id: bytes
    frontier: int
    proposal: Proposal
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., session_id: _Optional[bytes] = ..., frontier: _Optional[int] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("opened", "committed", "verdict", "finished", "frontier")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    committed: Committed
    verdict: Verdict
    finished: Finished
    frontier: int
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., frontier: _Optional[int] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class CloseResponse(_message.Message):
    __slots__ = ("existed", "usage")
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    usage: Usage
    def __init__(self, existed: bool = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "frontier", "protocol_versions")
    CODE_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    frontier: int
    protocol_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., frontier: _Optional[int] = ..., protocol_versions: _Optional[_Iterable[int]] = ...) -> None: ...
