"""The real voice: windows equal the whole, memory stays flat."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from antiphon_core.memory import resident_bytes
from antiphon_vocoder.engine.stream import window_stops
from antiphon_vocoder.engine.voices import LoadedVoices
from antiphon_vocoder.messages import VoiceFile
from antiphon_vocoder.tts.graph import NotSplittable, split_decoder
from antiphon_vocoder.tts.piper import PiperVoice
from antiphon_vocoder.voices import load_catalog
from onnx import TensorProto, helper


@pytest.fixture(scope="module")
def file() -> VoiceFile:
    return load_catalog(None, "").default.file


@pytest.fixture(scope="module")
def voice(file: VoiceFile) -> PiperVoice:
    return PiperVoice(file, 1)


def ids(count: int, seed: int = 0) -> list[int]:
    symbols = np.random.default_rng(seed).integers(14, 100, count)
    return [1, 0, *(value for symbol in symbols for value in (int(symbol), 0)), 2]


def test_windows_equal_the_whole_decoder(voice: PiperVoice) -> None:
    assert voice.windowed
    assert voice.samples_per_frame == 256
    latent = voice.encode(ids(40), speed=1.0, noiseless=True)
    whole = voice.decode(latent, 0, latent.frames)
    assert len(whole) == latent.frames * 256
    parts, position = [], 0
    for stop in window_stops(latent.frames, 22050 / 256, first=True):
        parts.append(voice.decode(latent, position, stop))
        position = stop
    assert np.abs(np.concatenate(parts) - whole).max() < 1e-5


def test_windowed_voice_gives_the_samples_of_the_whole_graph(
    file: VoiceFile, voice: PiperVoice
) -> None:
    session = onnxruntime.InferenceSession(file.model_path, providers=["CPUExecutionProvider"])
    phonemes = ids(20)
    feed = {
        "input": np.array([phonemes], np.int64),
        "input_lengths": np.array([len(phonemes)], np.int64),
        "scales": np.array([0.0, file.length_scale, 0.0], np.float32),
    }
    whole = np.asarray(session.run(None, feed)[0]).reshape(-1)
    latent = voice.encode(phonemes, speed=1.0, noiseless=True)
    assert np.abs(voice.decode(latent, 0, latent.frames) - whole).max() < 1e-5


def test_context_is_no_larger_than_needed_by_two_frames(voice: PiperVoice) -> None:
    latent = voice.encode(ids(30), speed=1.0, noiseless=True)
    whole = voice.decode(latent, 40, 60)
    voice.context_frames -= 3
    try:
        short = voice.decode(latent, 40, 60)
    finally:
        voice.context_frames += 3
    assert np.abs(short - whole).max() > 1e-6


def test_equal_input_gives_equal_samples_and_speed_scales(voice: PiperVoice) -> None:
    one = voice.encode(ids(20), speed=1.0, noiseless=True)
    two = voice.encode(ids(20), speed=1.0, noiseless=True)
    assert np.array_equal(one.tensors[0], two.tensors[0])
    fast = voice.encode(ids(20), speed=2.0, noiseless=True)
    assert 0.4 < fast.frames / one.frames < 0.65
    noisy = voice.encode(ids(20), speed=1.0, noiseless=False)
    assert not np.array_equal(noisy.tensors[0][..., :10], one.tensors[0][..., :10])


def test_other_graphs_are_not_split(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    node = helper.make_node("Identity", ["x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", [value], [result]))
    path = tmp_path / "other.onnx"
    onnx.save(model, str(path))
    with pytest.raises(NotSplittable):
        split_decoder(str(path))


def test_speakers_of_one_model_share_what_is_loaded(file: VoiceFile, tmp_path: Path) -> None:
    """A graph of a voice's inputs that says the number of its speaker, once for each id."""
    integers = {"input": [1, "T"], "input_lengths": [1], "sid": [1]}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name, shape in integers.items()
    ]
    inputs.append(helper.make_tensor_value_info("scales", TensorProto.FLOAT, [3]))
    nodes = [
        helper.make_node("Sub", ["input", "input"], ["zeros"]),
        helper.make_node("Add", ["zeros", "sid"], ["numbers"]),
        helper.make_node("Cast", ["numbers"], ["output"], to=TensorProto.FLOAT),
    ]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, "T"])
    path = tmp_path / "many.onnx"
    opset = helper.make_opsetid("", 17)
    graph = helper.make_graph(nodes, "g", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), str(path))
    files = [
        msgspec.structs.replace(file, id=f"many-{number}", model_path=str(path), speaker=number)
        for number in range(3)
    ]
    voices = LoadedVoices(files, 1)
    for number in (0, 2, 1):
        voice = voices.get(f"many-{number}")
        latent = voice.encode([1, 0, 2], speed=1.0, noiseless=True)
        assert voice.decode(latent, 0, latent.frames).tolist() == [number] * 3
    assert len(voices._loaded) == 1


@pytest.mark.slow
def test_memory_is_flat_over_1000_lengths(voice: PiperVoice) -> None:
    def speak(count: int) -> None:
        latent = voice.encode(ids(count, seed=count), speed=4.0, noiseless=True)
        voice.decode(latent, 0, min(latent.frames, 40))

    lengths = np.random.default_rng(1).permutation(np.arange(1000) % 30 + 2)
    for length in range(2, 32):
        speak(length)
    before = resident_bytes()
    for length in lengths:
        speak(int(length))
    assert resident_bytes() - before < 0.05 * before


def test_a_text_file_is_no_voice(file: VoiceFile, tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("this is text")
    with pytest.raises(ValueError, match=r"text\.onnx is not an ONNX model"):
        PiperVoice(msgspec.structs.replace(file, model_path=str(path)), 1)
