"""`edge-client chat`: a conversation with the target, in a terminal or line by line.

The only user of prompt_toolkit. `app` is where it begins.
"""
