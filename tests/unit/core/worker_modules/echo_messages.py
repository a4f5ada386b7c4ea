"""Messages between the ipc tests and their worker."""

from __future__ import annotations

import msgspec


class Start(msgspec.Struct, tag="start"):
    label: str


class Ping(msgspec.Struct, tag="ping"):
    number: int


class Die(msgspec.Struct, tag="die"):
    code: int


class Emit(msgspec.Struct, tag="emit"):
    """Asks the worker to send ``count`` pongs, or one unknown message."""

    count: int
    unknown: bool = False


class Shutdown(msgspec.Struct, tag="shutdown"):
    pass


class Stray(msgspec.Struct, tag="stray"):
    """A member of neither union."""


class Pong(msgspec.Struct, tag="pong"):
    number: int


class Up(msgspec.Struct, tag="up"):
    label: str
    pid: int


class LastWords(msgspec.Struct, tag="last_words"):
    text: str


ToWorker = Start | Ping | Die | Emit | Shutdown
FromWorker = Pong | Up | LastWords
