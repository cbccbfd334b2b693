"""Links with a name, and where their figures are from.

Round trip, rates and what else a source tells are its own; what it is silent about
(jitter's shape, queues, bursts) is chosen, and said to be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from netsim.links.link import LinkModel
from netsim.links.table import LONGEST_MS, from_table, load_profile, nearest

_WEBPAGETEST = "WebPageTest connectivity presets"
_OOKLA_FIXED = "Ookla Speedtest, fixed broadband, United States, Q3 2023 (medians)"
_OPENSIGNAL = "Opensignal, State of Mobile Network Experience: USA, May 2019 (averages, 4G)"

_TABLES: dict[str, dict[str, Any]] = {
    "ethernet": {
        "source": "IEEE 802.3ab, 1 Gbit/s; round trip within one site: chosen",
        "rtt_ms": 1,
        "rate_mbit_s": 1000,
        "queue_bytes": 512_000,
    },
    "wifi-good": {
        "source": f"{_OOKLA_FIXED}; hop of 3 ms: Sui et al., WiFiSeer, MobiSys 2016 (median)",
        "rtt_ms": 16,
        "jitter_ms": 1.5,
        "up": {"rate_mbit_s": 23.7, "queue_bytes": 250_000},
        "down": {"rate_mbit_s": 213.8, "queue_bytes": 500_000},
    },
    "wifi-bad": {
        "source": "Pei et al., WiFi can be the weakest link, INFOCOM 2016 (half of the"
        " packets above 20 ms on the hop, a tenth above 100 ms); rate, loss: chosen",
        "rtt_ms": 80,
        "jitter": "pareto",
        "jitter_ms": 30,
        "loss": 0.01,
        "burst": 3,
        "up": {"rate_mbit_s": 3, "queue_bytes": 128_000},
        "down": {"rate_mbit_s": 8, "queue_bytes": 128_000},
    },
    "5g": {
        "source": "Ookla Speedtest: latency of 5G in the United States, Q3 2023 (50 ms); rates"
        " worldwide, Q3 2021 (medians); jitter: chosen",
        "rtt_ms": 50,
        "jitter_ms": 4,
        "up": {"rate_mbit_s": 21.1, "queue_bytes": 500_000},
        "down": {"rate_mbit_s": 166.1, "queue_bytes": 2_000_000},
    },
    "4g-good": {
        "source": f"{_OPENSIGNAL}; jitter, queue: chosen",
        "rtt_ms": 55,
        "jitter_ms": 5,
        "up": {"rate_mbit_s": 6.3, "queue_bytes": 250_000},
        "down": {"rate_mbit_s": 21.3, "queue_bytes": 500_000},
    },
    "4g-weak": {
        "source": "Lighthouse, “Slow 4G” (150 ms, 1.6/0.75 Mbit/s, the slowest quarter of 4G);"
        " jitter, loss, queue: chosen",
        "rtt_ms": 150,
        "jitter_ms": 15,
        "loss": 0.005,
        "burst": 2,
        "up": {"rate_mbit_s": 0.75, "queue_bytes": 64_000},
        "down": {"rate_mbit_s": 1.6, "queue_bytes": 128_000},
    },
    "3g": {
        "source": f"{_WEBPAGETEST}, “3G” (300 ms, 1.6/0.768 Mbit/s); jitter, queue: chosen",
        "rtt_ms": 300,
        "jitter_ms": 20,
        "up": {"rate_mbit_s": 0.768, "queue_bytes": 64_000},
        "down": {"rate_mbit_s": 1.6, "queue_bytes": 128_000},
    },
    "3g-slow": {
        "source": f"{_WEBPAGETEST}, “3G Slow” (400 ms, 0.4/0.4 Mbit/s); jitter, queue: chosen",
        "rtt_ms": 400,
        "jitter_ms": 30,
        "rate_mbit_s": 0.4,
        "queue_bytes": 64_000,
    },
    "edge": {
        "source": f"{_WEBPAGETEST}, “Edge” (840 ms, 0.24/0.2 Mbit/s); jitter, queue: chosen",
        "rtt_ms": 840,
        "jitter_ms": 60,
        "up": {"rate_mbit_s": 0.2, "queue_bytes": 32_000},
        "down": {"rate_mbit_s": 0.24, "queue_bytes": 32_000},
    },
    "dsl": {
        "source": f"{_WEBPAGETEST}, “DSL” (50 ms, 1.5/0.384 Mbit/s); queue: chosen",
        "rtt_ms": 50,
        "up": {"rate_mbit_s": 0.384, "queue_bytes": 32_000},
        "down": {"rate_mbit_s": 1.5, "queue_bytes": 64_000},
    },
    "cable": {
        "source": f"{_OOKLA_FIXED}; jitter, queue: chosen",
        "rtt_ms": 13,
        "jitter_ms": 1,
        "up": {"rate_mbit_s": 23.7, "queue_bytes": 250_000},
        "down": {"rate_mbit_s": 213.8, "queue_bytes": 500_000},
    },
    "leo": {
        "source": "Michel et al., A first look at Starlink performance, IMC 2022 (median 50 ms);"
        " a break of 140 ms every 15 s: statistical characterization of latency over LEO,"
        " arXiv 2601.08439; rates, jitter, loss: chosen",
        "rtt_ms": 50,
        "jitter_ms": 5,
        "loss": 0.005,
        "burst": 4,
        "handover_every_s": 14.86,
        "handover_s": 0.14,
        "regular": True,
        "up": {"rate_mbit_s": 10, "queue_bytes": 250_000},
        "down": {"rate_mbit_s": 100, "queue_bytes": 1_000_000},
    },
    "geo": {
        "source": "G. Huston, Testing LEO and GEO satellite services, APNIC 2022 (about 600 ms);"
        " a 100/10 Mbit/s tariff; jitter, queue: chosen",
        "rtt_ms": 600,
        "jitter_ms": 10,
        "up": {"rate_mbit_s": 10, "queue_bytes": 500_000},
        "down": {"rate_mbit_s": 100, "queue_bytes": 2_000_000},
    },
    "train": {
        "source": f"{_OPENSIGNAL}; a new cell every 15 s (1.3 km at 300 km/h), breaks of 100 ms,"
        " loss, and dead spots of 1.5 s every 90 s: chosen",
        "rtt_ms": 70,
        "jitter_ms": 10,
        "loss": 0.005,
        "burst": 3,
        "handover_every_s": 15,
        "handover_s": 0.1,
        "outage_every_s": 90,
        "outage_s": 1.5,
        "up": {"rate_mbit_s": 6.3, "queue_bytes": 250_000},
        "down": {"rate_mbit_s": 21.3, "queue_bytes": 500_000},
    },
    "elevator": {
        "source": f"{_OPENSIGNAL}; nothing at all for 8 s, every 20 s: chosen",
        "rtt_ms": 55,
        "jitter_ms": 5,
        "outage_every_s": 20,
        "outage_s": 8,
        "up": {"rate_mbit_s": 6.3, "queue_bytes": 250_000},
        "down": {"rate_mbit_s": 21.3, "queue_bytes": 500_000},
    },
}

NAMES = tuple(_TABLES)
"""Besides these there is rtt-N for every N in milliseconds."""


@cache
def _named(name: str) -> LinkModel:
    return from_table({"name": name, **_TABLES[name]})


def profile(given: str | Mapping[str, Any]) -> LinkModel:
    """A link by its name, by the name of a TOML file that ends in .toml, or from a table.

    Raises:
        ValueError: there is none such; the message has the nearest name and all of them.
    """
    if isinstance(given, Mapping) or given.endswith(".toml"):
        return load_profile(given)
    name = given.strip().lower()
    if name in _TABLES:
        return _named(name)
    if (rtt := re.fullmatch(r"rtt-(\d{1,7}(?:\.\d{1,6})?)", name, re.ASCII)) is not None:
        rtt_ms = float(rtt[1])
        if rtt_ms <= LONGEST_MS:
            return LinkModel.symmetric(
                rtt_ms / 1000, name=name, source="a round trip and nothing else"
            )
    raise ValueError(
        f"no link is called {given!r}{nearest(name, (*NAMES, 'rtt-100'))} There are:"
        f" {', '.join(NAMES)}, rtt-N for a round trip of N ms (rtt-100), and files that end"
        " in .toml"
    )


def profiles() -> list[LinkModel]:
    """All that have a name."""
    return [_named(name) for name in NAMES]
