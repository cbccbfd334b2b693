"""Draft and target both on this device, as a way to a target for `EdgeClient`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

from edge_client.draft.source import Drafted, DraftSource, interrupt
from edge_client.local.device import TargetDevice
from edge_client.local.link import LocalLink


class OnDevicePair:
    """A `Connector` to a target on this device, with which the draft shares a thread.

    llama.cpp's threads wait for each other in busy loops, and each caller has a crowd of
    its own: two crowds on the same cores slow each other down even while one has nothing
    to do (measured with two threads each on two cores: the target by 1.4, the draft by 2).
    So both models compute in one thread, in turn.
    """

    def __init__(self, device: TargetDevice) -> None:
        self._device = device

    @property
    def shares_cores(self) -> bool:
        """Both models compute here, in turn."""
        return True

    def link(self) -> LocalLink:
        """A link of the running event loop; all share the device."""
        return LocalLink(self._device)

    def place(self, source: DraftSource) -> DraftSource:
        """The source, with its model in the target's thread."""
        return _InThread(source, self._device.thread)

    def close(self) -> None:
        """Stop what runs and free the target."""
        self._device.close()


class _InThread:
    """A draft source whose model computes in the thread of an executor."""

    def __init__(self, source: DraftSource, thread: Executor) -> None:
        self._source = source
        self._thread = thread

    def next(self, prefix: Sequence[int], chain: int) -> Drafted | None:
        """As the source's own, after what the thread was asked for before."""
        return self._thread.submit(self._source.next, prefix, chain).result()

    def interrupt(self) -> None:
        """Cut the source short."""
        interrupt(self._source)

    def close(self) -> None:
        """Close the source; its model computes nothing any more."""
        self._source.close()
