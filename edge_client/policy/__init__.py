"""How to draft and send: estimates, expected speeds, and the choice between them. All pure.

The simulator runs the same objects over a virtual clock.
"""
