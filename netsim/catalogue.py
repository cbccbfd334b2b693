"""Link profiles as people name them, with errors of our own."""

from __future__ import annotations

from netsim.links import LinkModel, profile
from specwire.errors import BadRequest

MOST_LOSS = 0.95
"""Beyond, a text takes hours of retransmissions, or for ever. Of packets, and of time."""


def profile_named(name: str) -> LinkModel:
    """The link of this name, or in this file if it ends in .toml.

    Raises:
        BadRequest: there is none; the message names the nearest.
    """
    try:
        return usable(profile(name))
    except ValueError as error:
        raise BadRequest(str(error)) from error


def usable(link: LinkModel) -> LinkModel:
    """The link, if anything ever gets through: a session over it would never end else.

    Raises:
        BadRequest: a direction loses everything, or is silent for ever.
    """
    for side, way in (("up", link.up), ("down", link.down)):
        if way.loss.rate >= MOST_LOSS:
            raise BadRequest(
                f"link {link.name} loses {way.loss.rate:.0%} of what goes {side}; "
                f"a session needs less than {MOST_LOSS:.0%}"
            )
        for what, gaps in (("outages", way.outages), ("handovers", way.handovers)):
            if gaps.fixed and gaps.share == 1:
                raise BadRequest(
                    f"link {link.name} has {what} {side} from {gaps.fixed[-1][0]:g} s on for "
                    "ever, and a session would never end; give an end"
                )
            if gaps.share >= MOST_LOSS:
                raise BadRequest(
                    f"link {link.name} has {what} {side} for {gaps.share:.2%} of the time; "
                    f"a session needs less than {MOST_LOSS:.0%}"
                )
    return link
