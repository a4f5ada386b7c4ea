"""Message content that several endpoints take: pictures and recordings by value."""

from __future__ import annotations

import re
from base64 import b64decode

from antiphon_core.errors import InvalidArgument

from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.generation import AudioContent, ImageContent, Modality

_DATA_URL = re.compile(r"data:([\w.+/-]+)(?:;[\w.+-]+=[^;,]*)*;base64,(.*)", re.DOTALL)
_AUDIO_ENCODINGS = {"ogg": "opus"}


def image_content(url: str, path: str, url_path: str, model: ModelInfo) -> ImageContent:
    """A picture.

    Args:
        url: a data URL.
        path: of the content part, for errors.
        url_path: of the URL, for errors.
        model: that will read it.

    Raises:
        InvalidArgument: the model reads none, or the URL is not one of data.
    """
    _require_input(Modality.IMAGE, path, model)
    return ImageContent(*data_url_bytes(url, url_path, "image/png", reason="INVALID_IMAGE"))


def data_url_bytes(url: str, path: str, example: str, *, reason: str) -> tuple[bytes, str]:
    """What a data URL holds, and its media type.

    Args:
        url: a data URL in base64.
        path: of the URL, for errors.
        example: a media type, for errors.
        reason: of an error in the base64.

    Raises:
        InvalidArgument: it is no data URL, or not in base64.
    """
    match = _DATA_URL.fullmatch(url)
    if match is None:
        raise InvalidArgument(
            f"{path} must be a data URL (data:{example};base64,...); URLs are not fetched",
            reason="UNSUPPORTED_OPTION",
            field=path,
        )
    try:
        return b64decode(match.group(2), validate=True), match.group(1)
    except ValueError:
        raise InvalidArgument(f"{path} is not valid base64", reason=reason, field=path) from None


def audio_content(data: bytes, audio_format: str, path: str, model: ModelInfo) -> AudioContent:
    """A recording; raises InvalidArgument naming ``path`` where the model reads none."""
    _require_input(Modality.AUDIO, path, model)
    return AudioContent(data, _AUDIO_ENCODINGS.get(audio_format, audio_format))


def _require_input(modality: Modality, path: str, model: ModelInfo) -> None:
    if modality not in model.input_modalities:
        reads = [str(item) for item in model.input_modalities] or ["text"]
        raise InvalidArgument(
            f"{path}: model {model.id!r} does not read {modality}; it reads {', '.join(reads)}",
            reason="UNSUPPORTED_MODALITY",
            field=path,
            allowed=reads,
        )
