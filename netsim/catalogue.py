"""Link profiles as people name them, with errors of our own."""

from __future__ import annotations

from netsim.links import LinkModel, profile
from specwire.errors import BadRequest


def profile_named(name: str) -> LinkModel:
    """The link of this name, or in this file if it ends in .toml.

    Raises:
        BadRequest: there is none; the message names the nearest.
    """
    try:
        return profile(name)
    except ValueError as error:
        raise BadRequest(str(error)) from error
