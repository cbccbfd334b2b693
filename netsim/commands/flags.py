"""Flags that several commands share."""

from __future__ import annotations

import argparse

from netsim.scenario_file import MOST_SEED
from specwire.errors import BadRequest

AXIS_FLAGS = {
    "profile": ("--profile",),
    "rtt_ms": ("--rtt", "--rtt-ms"),
    "rate_mbit_s": ("--rate", "--rate-mbit-s"),
    "loss": ("--loss",),
    "burst": ("--burst",),
    "verify_ms": ("--verify-ms",),
    "draft_ms": ("--draft-ms",),
    "alpha": ("--alpha",),
    "gamma": ("--gamma",),
    "clients": ("--clients",),
}
"""What sets an axis."""


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """How many processes."""
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: all cores)")


def at_least_one(flag: str, value: int | None, default: int, *, most: int | None = None) -> int:
    """The flag's value, or what holds without it.

    Raises:
        BadRequest: it is 0 or less, or above `most`.
    """
    if value is not None and value < 1:
        raise BadRequest(f"{flag} must be 1 or more, not {value}")
    if value is not None and most is not None and value > most:
        raise BadRequest(f"{flag} must be {most} at most, not {value}")
    return default if value is None else value


def first_seed(value: int) -> int:
    """The value of --seed.

    Raises:
        BadRequest: it is no seed.
    """
    if not 0 <= value <= MOST_SEED:
        raise BadRequest(f"--seed must be 0 to {MOST_SEED}, not {value}")
    return value
