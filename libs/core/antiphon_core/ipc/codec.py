"""msgpack encoding of tagged msgspec structs."""

from __future__ import annotations

from typing import Any

import msgspec


class MessageDecodeError(Exception):
    """The peer sent a message that is no member of the expected union."""


class Codec:
    """Encodes any struct; decodes only members of the inbound union.

    Args:
        inbound: a union of tagged msgspec structs, such as ``Submit | Cancel``.
    """

    def __init__(self, inbound: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(type=inbound)

    def encode(self, message: object) -> bytes:
        """Bytes of one message.

        Raises:
            TypeError: not a tagged struct, or a field holds a type that msgpack cannot carry.
        """
        if getattr(type(message), "__struct_config__", None) is None:
            raise TypeError(
                f"an ipc message must be a msgspec struct, got {type(message).__name__}"
            )
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> object:
        """The message in these bytes.

        Raises:
            MessageDecodeError: unknown type or a wrong field.
        """
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise MessageDecodeError(f"undecodable ipc message: {error}") from error
