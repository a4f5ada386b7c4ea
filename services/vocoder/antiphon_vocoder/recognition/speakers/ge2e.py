"""The default model: an LSTM trained with the generalised end-to-end loss (Wan et al. 2018).

Its weights are those of the package resemblyzer (Apache-2.0): three layers of 256 over 40 mel
bands, a projection, ReLU and length 1. The network is run by onnxruntime, which the process has
anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from antiphon_core.errors import FailedPrecondition
from numpy.typing import NDArray

from antiphon_vocoder.onnx_session import ModelUnloadable, open_session
from antiphon_vocoder.recognition.speakers.checkpoint import UnreadableCheckpoint, read_tensors
from antiphon_vocoder.recognition.speakers.embedder import Embedding, VoiceUnheard, unit
from antiphon_vocoder.recognition.whisper.features import FFT, HOP, slaney_filters

_SECTION = "model_state"
_BANDS = 40
_WIDTH = 256
_LAYERS = 3
_PART = 160
"""Frames of a partial utterance, 1.6 s."""
STEP = 160
"""Frames from one partial utterance to the next: upstream's 77 cost twice as much and tell voices
apart no better."""
_LEAST_COVERAGE = 0.75
"""Share of the last partial utterance that must be audio."""
_LEVEL = 10 ** (-30 / 20)
"""Root mean square to which quieter audio is raised: -30 dB of full scale."""
_SILENT = 1e-5
"""Root mean square below which there is nothing to raise."""


class Ge2eEmbedder:
    """See Embedder.

    Args:
        path: the checkpoint.
        step: frames from one partial utterance to the next.

    Raises:
        FailedPrecondition: SPEAKER_MODEL_MISSING, it does not load.
    """

    name = "ge2e"
    same_voice = 0.66
    """Measured: of segments of 1.6 s, about 5 % of a voice's own are less alike to its centroid,
    and 5 % of other voices' are more alike."""
    rise = 0.02
    """A vector is the mean of its parts': the longer, the more alike to any voice."""

    def __init__(self, path: Path, *, step: int = STEP) -> None:
        try:
            model = _graph(read_tensors(path, _SECTION))
            self._session = open_session(model, lengths_vary=True)
        except (OSError, UnreadableCheckpoint, ModelUnloadable, KeyError) as error:
            raise FailedPrecondition(
                f"the speaker model does not load: {error}", reason="SPEAKER_MODEL_MISSING"
            ) from error
        self._step = step
        self._window = np.hanning(FFT + 1)[:-1].astype(np.float32)
        self._filters = slaney_filters(_BANDS)

    def embed(self, audio: NDArray[np.float32]) -> Embedding:
        """See Embedder; audio shorter than 1.6 s is repeated, which tells more than silence."""
        level = float(np.sqrt(np.mean(np.square(audio, dtype=np.float64)))) if len(audio) else 0.0
        if level < _SILENT:
            raise VoiceUnheard(f"a level of {level:g}")
        if len(audio) < _PART * HOP:
            audio = np.resize(audio, _PART * HOP)
        starts = _starts(len(audio), self._step)
        samples = np.zeros(max(len(audio), (starts[-1] + _PART) * HOP), np.float32)
        samples[: len(audio)] = audio * max(1.0, _LEVEL / level)
        mel = self.mel(samples)
        parts = np.stack([mel[start : start + _PART] for start in starts], axis=1)
        (raw,) = self._session.run(None, {"mel": parts})
        vectors = np.asarray(raw)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit(np.mean(vectors / np.maximum(lengths, 1e-9), axis=0))

    def mel(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Power in mel bands (frames, 40) of samples (n,): 25 ms windows centred every 10 ms."""
        padded = np.pad(samples, FFT // 2)
        windows = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP]
        spectrum = np.fft.rfft(windows * self._window, axis=1)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        return power.astype(np.float32) @ self._filters


def _starts(samples: int, step: int) -> list[int]:
    """First frames of the partial utterances; one where the audio is shorter than that."""
    frames = samples // HOP + 1
    starts = list(range(0, max(1, frames - _PART + step + 1), step))
    covered = (samples - starts[-1] * HOP) / (_PART * HOP)
    return starts[:-1] if len(starts) > 1 and covered < _LEAST_COVERAGE else starts


def _graph(tensors: Mapping[str, NDArray[np.float32]]) -> bytes:
    """The network from mel (160, N, 40) to vectors (N, 256) before their length is made 1."""
    # Here, so that a process that never tells speakers apart does not load it.
    from onnx import TensorProto, helper, numpy_helper

    constants = {
        "first": np.zeros(1, np.int64),
        "direction": np.ones(1, np.int64),
        "weight": _expected(tensors, "linear.weight", (_WIDTH, _WIDTH)),
        "bias": _expected(tensors, "linear.bias", (_WIDTH,)),
    }
    nodes = []
    source, width = "mel", _BANDS
    for layer in range(_LAYERS):
        gates = 4 * _WIDTH
        own = _reordered(_expected(tensors, f"lstm.weight_ih_l{layer}", (gates, width)))
        back = _reordered(_expected(tensors, f"lstm.weight_hh_l{layer}", (gates, _WIDTH)))
        biases = [
            _reordered(_expected(tensors, f"lstm.bias_{kind}_l{layer}", (gates,)))
            for kind in ("ih", "hh")
        ]
        constants |= {
            f"own{layer}": own[None],
            f"back{layer}": back[None],
            f"biases{layer}": np.concatenate(biases)[None],
        }
        inputs = [source, f"own{layer}", f"back{layer}", f"biases{layer}"]
        outputs = [f"all{layer}", f"last{layer}"]
        nodes.append(helper.make_node("LSTM", inputs, outputs, hidden_size=_WIDTH))
        source, width = f"states{layer}", _WIDTH
        if layer + 1 < _LAYERS:
            nodes.append(helper.make_node("Squeeze", [f"all{layer}", "direction"], [source]))
    nodes += [
        helper.make_node("Squeeze", [f"last{_LAYERS - 1}", "first"], ["state"]),
        helper.make_node("Gemm", ["state", "weight", "bias"], ["projected"], transB=1),
        helper.make_node("Relu", ["projected"], ["vectors"]),
    ]
    graph = helper.make_graph(
        nodes,
        "ge2e",
        [helper.make_tensor_value_info("mel", TensorProto.FLOAT, [_PART, "N", _BANDS])],
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["N", _WIDTH])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def _expected(
    tensors: Mapping[str, NDArray[np.float32]], name: str, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    if tensors[name].shape != shape:
        raise UnreadableCheckpoint(f"{name} has shape {tensors[name].shape}, expected {shape}")
    return tensors[name]


def _reordered(gates: NDArray[np.float32]) -> NDArray[np.float32]:
    """torch has the gates as input, forget, cell, output; ONNX as input, output, forget, cell."""
    into, forget, cell, out = np.split(gates, 4)
    return np.concatenate([into, out, forget, cell])
