"""`edge-client doctor`: can this device use that verifier, and what is to be expected of it.

`run` is where it begins.
"""
