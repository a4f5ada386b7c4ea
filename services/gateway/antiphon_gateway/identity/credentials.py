"""What a request's headers say about who sent it."""

from __future__ import annotations

from collections.abc import Sequence

Headers = Sequence[tuple[bytes, bytes]]


def token_of(headers: Headers) -> str:
    """The token of ``Authorization: Bearer`` or, without one, of ``api-key``; else empty."""
    api_key = b""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return _text(token)
        elif name == b"api-key":
            api_key = value
    return _text(api_key)


def client_address(headers: Headers, peer: str, trusted_hops: int) -> str:
    """The client's address.

    Args:
        headers: of the request.
        peer: the other end of the connection.
        trusted_hops: how many proxies in front append to X-Forwarded-For. What stands further
            left was sent by the client and proves nothing.
    """
    if not trusted_hops:
        return peer
    chain = [
        part.strip().decode("latin-1")
        for name, value in headers
        if name == b"x-forwarded-for"
        for part in value.split(b",")
    ]
    return chain[-trusted_hops] if len(chain) >= trusted_hops else peer


def _text(value: bytes) -> str:
    return value.strip().decode("utf-8", "surrogateescape")
