"""Network simulator: what speculative decoding saves on a given link, and where it loses."""
