"""What is known of the verifier, asked for no more often than needed."""

from __future__ import annotations

import time

from edge_client import retry
from edge_client.client import EdgeClient
from edge_client.openai_api.errors import ApiError
from edge_client.openai_api.logprobs import TokenNames
from edge_client.openai_api.request import ALIAS
from specwire.v1 import verifier_pb2 as pb
from specwire.vocabulary import Vocabulary

FRESH_S = 60.0
"""How long a description is taken for true."""

ONCE = retry.RetryPolicy(attempts=1, total_s=0.0)


class Verifier:
    """The verifier as this endpoint knows it. Another model may be served there tomorrow.

    Args:
        client: asks.
        vocabulary: the draft's; None without a draft.
    """

    def __init__(self, client: EdgeClient, vocabulary: Vocabulary | None) -> None:
        self._client = client
        self._vocabulary = vocabulary
        self._served: pb.DescribeResponse | None = None
        self._asked_at = 0.0

    async def ask(self, policy: retry.RetryPolicy = ONCE) -> pb.DescribeResponse:
        """What it serves now.

        Raises:
            SpecwireError: it can't be reached, or refuses.
        """
        self._served = await self._client.describe(policy)
        self._asked_at = time.monotonic()
        return self._served

    async def described(self) -> pb.DescribeResponse:
        """What it serves, or served not long ago.

        Raises:
            SpecwireError: it can't be reached, or refuses.
        """
        if self._served is not None and time.monotonic() - self._asked_at < FRESH_S:
            return self._served
        return await self.ask(retry.CONNECT)

    async def serving(self, name: str) -> pb.DescribeResponse:
        """The description, if `name` is the model that is served.

        Raises:
            ApiError: it is not.
            SpecwireError: the verifier can't be reached, or refuses.
        """
        served = await self.described()
        if name not in (served.model, ALIAS):
            served = await self.ask(retry.CONNECT)
        if name not in (served.model, ALIAS):
            raise ApiError(
                404,
                f"the model {name!r} does not exist here; there are {served.model!r} and "
                f"{ALIAS!r}, which stands for it",
                "model",
                "model_not_found",
            )
        return served

    def names(self, served: pb.DescribeResponse) -> TokenNames:
        """What its tokens are called: by the draft's vocabulary, if that is the same."""
        vocabulary = self._vocabulary
        if vocabulary is not None and vocabulary.fingerprint != served.vocabulary.fingerprint:
            vocabulary = None
        return TokenNames(vocabulary, frozenset(served.vocabulary.end_ids))
