"""The edge: drafts on this device, generates with a target in the cloud."""

from edge_client.client import EdgeClient, TokenStream
from edge_client.credentials import Credentials
from edge_client.options import GenerateOptions, Mode, Verification
from edge_client.result import Result, Token

__all__ = [
    "Credentials",
    "EdgeClient",
    "GenerateOptions",
    "Mode",
    "Result",
    "Token",
    "TokenStream",
    "Verification",
]
