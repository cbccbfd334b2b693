"""Link models: when what is sent arrives. Pure: time and seed go in, times come out.

model = profile("4g-weak")            a LinkModel: name, two Directions, source
link = model.open(seed=1)             a Link: its state in time
ready = link.connect(0.0)             TCP and TLS handshakes
link.up.send(ready, wire_bytes(120))  when a message of 120 bytes is there
"""

from netsim.links.described import described
from netsim.links.direction import Direction
from netsim.links.gaps import Gaps
from netsim.links.jitter import Jitter, JitterKind
from netsim.links.link import Link, LinkModel
from netsim.links.loss import Loss, LossProcess
from netsim.links.one_way import OneWay
from netsim.links.overhead import (
    CALL_DOWN_BYTES,
    CALL_UP_BYTES,
    WINDOW_BYTES,
    wire_bytes,
)
from netsim.links.profiles import NAMES, profile, profiles
from netsim.links.table import load_profile
from netsim.links.trace import Trace

__all__ = [
    "CALL_DOWN_BYTES",
    "CALL_UP_BYTES",
    "NAMES",
    "WINDOW_BYTES",
    "Direction",
    "Gaps",
    "Jitter",
    "JitterKind",
    "Link",
    "LinkModel",
    "Loss",
    "LossProcess",
    "OneWay",
    "Trace",
    "described",
    "load_profile",
    "profile",
    "profiles",
    "wire_bytes",
]
