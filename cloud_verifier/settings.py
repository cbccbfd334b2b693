"""What an operator can set, as one frozen object."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_verifier.backends.load import Dtype


@dataclass(frozen=True)
class Settings:
    """Settings of `cloud-verifier serve`.

    listen: HOST:PORT. dtype, device: as the backend takes them ("auto" to choose).
    context: tokens a session may hold; None for what the model was trained with.
    threads: of the model on a CPU; None for torch's own choice.
    idle_s: seconds that a session without a client is kept.
    """

    model: str
    listen: str = "127.0.0.1:7710"
    dtype: Dtype = "auto"
    device: str = "auto"
    context: int | None = None
    threads: int | None = None
    gamma: int = 32
    sessions: int = 256
    idle_s: float = 300.0
    grace_s: float = 10.0
