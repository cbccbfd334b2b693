"""An OpenAI-compatible HTTP endpoint on this machine: what takes a base URL becomes an edge.

A request's way: `guard` lets it in, `app` reads it, `chat_request` or `completion_request`
checks it, `choices` generates, `chat_response` or `completion_response` gives the answer its
shape, `event_stream` sends it piece by piece.

Only `app`, `event_stream`, `guard` and `serve` import starlette or uvicorn.
"""
