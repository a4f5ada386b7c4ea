"""Voices of the model process: the default from boot on, others loaded at their first use.

The speakers of one model share what is loaded.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from antiphon_vocoder.engine.stream import window_stops
from antiphon_vocoder.messages import VoiceFile
from antiphon_vocoder.tts.piper import PiperVoice

_KEPT = 4
_WARM_UP_CLAUSES = ((24, True), (60, False), (120, True))
"""Symbols of a clause, and whether it begins an utterance: from the shortest window to one that
takes a clause's rest in, which is longer than the others."""


class LoadedVoices:
    """Keeps the most recently used models in memory; one in use is never unloaded under its hop,
    since the hop holds a reference.

    Args:
        files: every voice, the default first.
        threads: onnxruntime's threads for one hop.
    """

    def __init__(self, files: Sequence[VoiceFile], threads: int) -> None:
        self._files = {file.id: file for file in files}
        self._threads = threads
        self._loaded: OrderedDict[str, PiperVoice] = OrderedDict()
        """By model file."""
        self._lock = threading.Lock()

    def sample_rate(self, voice: str) -> int:
        """Samples a second of a voice, loaded or not."""
        return self._files[voice].sample_rate

    def get(self, voice: str) -> PiperVoice:
        """The voice, loaded now if need be.

        Raises:
            ValueError: its file cannot be loaded.
        """
        file = self._files[voice]
        with self._lock:
            found = self._loaded.get(file.model_path)
            if found is None:
                found = PiperVoice(file, self._threads)
                self._loaded[file.model_path] = found
                if len(self._loaded) > _KEPT:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(file.model_path)
        return found if found.file == file else found.speaking(file)


def warm_up(voice: PiperVoice) -> float:
    """Runs every stage at the lengths of real hops, so that the first of them meets allocated
    memory; returns seconds of work a second of audio, taken from the last clause."""
    cost = 0.0
    rate = voice.sample_rate / voice.samples_per_frame
    for count, first in _WARM_UP_CLAUSES:
        ids = [1, 0, *([20, 0] * count), 2]
        started = time.perf_counter()
        latent = voice.encode(ids, speed=1.0, noiseless=True)
        position = 0
        for stop in window_stops(latent.frames, rate, first=first):
            voice.decode(latent, position, stop)
            position = stop
        audio = latent.frames * voice.samples_per_frame / voice.sample_rate
        cost = (time.perf_counter() - started) / max(audio, 1e-6)
    return cost
