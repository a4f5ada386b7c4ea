"""Ids of spoken answers.

An id carries the transcript itself, deflated, and when it expires. So any replica can put a former
answer back into a conversation, nothing is kept, and an id tells nobody more than its holder has
already heard.
"""

from __future__ import annotations

import binascii
import struct
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

from antiphon_core.errors import InvalidArgument

LIFETIME_SECONDS = 3600
TRANSCRIPT_BYTES = 1 << 20

_PREFIX = "audio_"
_EXPIRY = struct.Struct(">Q")


def spoken_id(transcript: str, expires_at: int) -> str:
    """The id of an answer.

    Args:
        transcript: what was said, at most TRANSCRIPT_BYTES of UTF-8.
        expires_at: seconds since the epoch.
    """
    data = _EXPIRY.pack(expires_at) + zlib.compress(transcript.encode("utf-8", "replace"), 9)
    return _PREFIX + urlsafe_b64encode(data).decode().rstrip("=")


def transcript_of(answer_id: str, field: str) -> str:
    """What was said in a former answer.

    Raises:
        InvalidArgument: blames ``field``; the id is none of ours, or it has expired.
    """
    code = answer_id.removeprefix(_PREFIX)
    try:
        data = urlsafe_b64decode(code + "=" * (-len(code) % 4))
        (expires_at,) = _EXPIRY.unpack_from(data)
        inflate = zlib.decompressobj()
        transcript = inflate.decompress(data[_EXPIRY.size :], TRANSCRIPT_BYTES).decode()
        known = answer_id.startswith(_PREFIX) and inflate.eof
    except (binascii.Error, ValueError, struct.error, zlib.error):
        known, expires_at, transcript = False, 0, ""
    if not known:
        raise InvalidArgument(
            f"{field} is not the id of a spoken answer; send its transcript as content",
            field=field,
        )
    if expires_at < time.time():
        raise InvalidArgument(
            f"{field} has expired; send the answer's transcript as content", field=field
        )
    return transcript
