"""A Piper voice: phoneme ids to latent frames, latent frames to samples."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from antiphon_vocoder.messages import VoiceFile
from antiphon_vocoder.onnx_session import ModelUnloadable, open_session
from antiphon_vocoder.tts.graph import NotSplittable, split_decoder


@dataclass
class Latent:
    """A clause after encoding; valid as long as it is referenced."""

    frames: int
    tensors: tuple[NDArray[Any], ...]
    """The decoder's inputs, the latent (1, channels, frames) first; for a voice that runs as a
    whole, the finished samples (frames,)."""
    id_ends: NDArray[np.int64] | None = None
    """For each phoneme id the frame behind its last one; None when the graph does not tell."""


class PiperVoice:
    """One loaded voice. Its methods may be called from several threads at once.

    Args:
        file: where the voice is and how it speaks.
        threads: onnxruntime's threads for one call.

    Raises:
        ValueError: the file is not an ONNX model with a Piper voice's inputs.
    """

    def __init__(self, file: VoiceFile, threads: int) -> None:
        self.file = file
        self.sample_rate = file.sample_rate
        self.not_splittable = ""
        """Why the decoder does not run in windows; empty when it does."""
        try:
            split = split_decoder(file.model_path)
        except NotSplittable as error:
            self.not_splittable = str(error)
            self._encoder = _session(Path(file.model_path), threads)
            self._decoder = None
            self._boundary: tuple[str, ...] = (self._encoder.get_outputs()[0].name,)
            self._durations = ""
            self.samples_per_frame, self.context_frames = 1, 0
        else:
            self._encoder = _session(split.encoder, threads)
            self._decoder = _session(split.decoder, threads)
            self._boundary = split.boundary
            self._durations = split.durations
            self.samples_per_frame = split.samples_per_frame
            self.context_frames = split.context_frames
        names = {node.name for node in self._encoder.get_inputs()}
        if not {"input", "input_lengths", "scales"} <= names:
            raise ValueError(
                f"{file.model_path} is not a Piper voice: its inputs are {sorted(names)}"
            )
        self._takes_speaker = "sid" in names

    def speaking(self, file: VoiceFile) -> PiperVoice:
        """Another speaker of the same model, with which it shares all that is loaded."""
        other = copy(self)
        other.file = file
        return other

    @property
    def windowed(self) -> bool:
        """Whether ``decode`` of a part costs only that part."""
        return self._decoder is not None

    def encode(self, phoneme_ids: Sequence[int], *, speed: float, noiseless: bool) -> Latent:
        """Turns a clause into latent frames.

        Args:
            phoneme_ids: ids with padding, begin and end.
            speed: 0.25 to 4; the frame count is divided by it.
            noiseless: noise scales 0, so that equal input gives equal samples.
        """
        file = self.file
        scales = (
            0.0 if noiseless else file.noise_scale,
            file.length_scale / speed,
            0.0 if noiseless else file.noise_width,
        )
        feed: dict[str, NDArray[Any]] = {
            "input": np.asarray([phoneme_ids], np.int64),
            "input_lengths": np.asarray([len(phoneme_ids)], np.int64),
            "scales": np.asarray(scales, np.float32),
        }
        if self._takes_speaker:
            feed["sid"] = np.asarray([file.speaker or 0], np.int64)
        outputs = [*self._boundary, *filter(None, [self._durations])]
        tensors: Any = self._encoder.run(outputs, feed)
        if self._decoder is None:
            samples = np.asarray(tensors[0], np.float32).reshape(-1)
            return Latent(len(samples), (samples,))
        ends = None
        if self._durations:
            ends = np.cumsum(tensors.pop().reshape(-1)).astype(np.int64)
        return Latent(tensors[0].shape[-1], tuple(tensors), ends)

    def decode(self, latent: Latent, start: int, stop: int) -> NDArray[np.float32]:
        """Samples ((stop - start) * samples_per_frame,) of the frames from start to stop."""
        if self._decoder is None:
            return latent.tensors[0][start:stop]
        left = max(start - self.context_frames, 0)
        right = min(stop + self.context_frames, latent.frames)
        window = np.ascontiguousarray(latent.tensors[0][:, :, left:right])
        feed = dict(zip(self._boundary, (window, *latent.tensors[1:]), strict=True))
        output: Any = self._decoder.run(None, feed)[0]
        samples = np.asarray(output, np.float32).reshape(-1)
        first = (start - left) * self.samples_per_frame
        return samples[first : first + (stop - start) * self.samples_per_frame]


def _session(model: Path | bytes, threads: int) -> onnxruntime.InferenceSession:
    try:
        return open_session(model, threads, lengths_vary=True)
    except ModelUnloadable as error:
        raise ValueError(f"onnxruntime cannot load the voice: {error}") from error
