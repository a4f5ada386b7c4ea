"""espeak-ng through ctypes: text to IPA. Loaded by the phonemizer process only.

The library is licensed under the GPL and keeps global state, so it runs in a process of its own
and is called by one thread.
"""

from __future__ import annotations

import ctypes

import espeakng_loader

_OUTPUT_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000
_UTF8 = 1
_IPA = 0x02


class EspeakError(Exception):
    """espeak-ng did not load, or has no such voice."""


class Espeak:
    """The loaded library; one per process."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        except OSError as error:
            raise EspeakError(f"espeak-ng cannot be loaded: {error}") from error
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self._library.espeak_TextToPhonemes.argtypes = [
            ctypes.POINTER(ctypes.c_char_p),
            ctypes.c_int,
            ctypes.c_int,
        ]
        self._library.espeak_Info.restype = ctypes.c_char_p
        data = espeakng_loader.get_data_path().encode()
        if self._library.espeak_Initialize(_OUTPUT_SYNCHRONOUS, 0, data, _DONT_EXIT) < 0:
            raise EspeakError(f"espeak-ng found no data in {data.decode()}")
        self._voice = ""

    @property
    def version(self) -> str:
        """Version as the library says it."""
        return self._library.espeak_Info(None).decode()

    def phonemes(self, text: str, voice: str) -> str:
        """IPA of the text with stress marks, words separated by spaces.

        Raises:
            EspeakError: unknown voice.
        """
        if voice != self._voice:
            if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
                raise EspeakError(f"espeak-ng has no voice {voice!r}")
            self._voice = voice
        position = ctypes.c_char_p(text.replace("\0", " ").encode())
        clauses = []
        # Each call reads one clause of espeak-ng's own cutting and moves the position.
        while position.value is not None:
            clause = self._library.espeak_TextToPhonemes(ctypes.byref(position), _UTF8, _IPA)
            if clause:
                clauses.append(clause.decode("utf-8", "replace"))
        return " ".join(clause.strip() for clause in clauses if clause.strip())
