"""Message content that several endpoints take: pictures and recordings by value."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode

from antiphon_core.errors import InvalidArgument

from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.generation import AudioContent, ImageContent, Modality

_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)
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
    match = _DATA_URL.fullmatch(url)
    if match is None:
        raise InvalidArgument(
            f"{url_path} must be a data URL (data:image/png;base64,...); URLs are not fetched",
            reason="UNSUPPORTED_OPTION",
            field=url_path,
        )
    try:
        data = b64decode(match.group(2), validate=True)
    except binascii.Error:
        raise InvalidArgument(
            f"{url_path} is not valid base64", reason="INVALID_IMAGE", field=url_path
        ) from None
    return ImageContent(data, match.group(1))


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
