"""A decoder as images gives the samples that it gives as sequences."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from antiphon_vocoder.tts.blocked_layout import as_images
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(5)


def decoder(scale: np.ndarray) -> onnx.ModelProto:
    """A latent (1, 4, T) and a speaker (1, 3, 1) to (1, 1, 2 T): both kinds of convolution."""
    weights = {
        "pre": RNG.normal(size=(4, 4, 3)),
        "cond": RNG.normal(size=(4, 3, 1)),
        "up": RNG.normal(size=(4, 1, 4)),
        "bias": RNG.normal(size=1),
        "scale": scale,
    }
    pads = {"pads": [2, 2], "dilations": [2]}
    nodes = [
        helper.make_node("Conv", ["latent", "pre"], ["a"], "/dec/pre", **pads),
        helper.make_node("Conv", ["speaker", "cond"], ["b"], "/dec/cond"),
        helper.make_node("Add", ["a", "b"], ["c"], "/dec/Add"),
        helper.make_node("Mul", ["c", "scale"], ["d"], "/dec/Mul"),
        helper.make_node("LeakyRelu", ["d"], ["e"], "/dec/LeakyRelu"),
        helper.make_node(
            "ConvTranspose", ["e", "up", "bias"], ["f"], "/dec/up", strides=[2], pads=[1, 1]
        ),
        helper.make_node("Tanh", ["f"], ["y"], "/dec/Tanh"),
    ]
    shapes = {"latent": [1, 4, "T"], "speaker": [1, 3, 1]}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, "S"])
    initial = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, [output], initial)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def run(model: onnx.ModelProto) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(6)
    latent, speaker = (
        rng.normal(size=shape).astype(np.float32) for shape in [(1, 4, 9), (1, 3, 1)]
    )
    return np.asarray(session.run(None, {"latent": latent, "speaker": speaker})[0])


def test_images_give_the_samples_of_sequences() -> None:
    model = decoder(np.array(0.5))
    expected = run(model)
    assert expected.shape == (1, 1, 18)
    images = as_images(model, "/dec/")
    assert {len(tensor.dims) for tensor in images.graph.initializer if "_" not in tensor.name} >= {
        4
    }
    assert np.abs(run(images) - expected).max() < 1e-6


def test_a_constant_of_the_channels_keeps_the_decoder_as_it_is() -> None:
    model = decoder(RNG.normal(size=(1, 4, 1)))
    before = model.SerializeToString()
    assert as_images(model, "/dec/").SerializeToString() == before
