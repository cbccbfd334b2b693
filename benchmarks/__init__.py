"""Measurements of the real system; run them with `make bench`."""
