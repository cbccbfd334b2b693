"""The few helpers that let one piece of code run on numpy and on torch arrays."""

from __future__ import annotations

import sys
from typing import Any

Array = Any
"""A numpy.ndarray or a torch.Tensor; code uses what both spell alike."""


def namespace(array: Array) -> Any:
    """The module whose functions take this array: numpy or torch.

    Found through the array's own type, so that nothing here imports torch.
    """
    return sys.modules[type(array).__module__.partition(".")[0]]


def like(values: Any, array: Array, dtype: str) -> Array:
    """`values` as an array of the kind and on the device of `array`.

    `dtype` is the name that both libraries use ("int64", "float64", "bool").
    """
    xp = namespace(array)
    return xp.asarray(values, dtype=getattr(xp, dtype), device=array.device)
