"""Splits an exported VITS graph in front of its waveform decoder.

A Piper file is one graph from phoneme ids to samples, so first audio would wait for the whole
clause. Its decoder (a HiFi-GAN generator, two thirds of the work) is a pure convolution: cut out,
it can run over windows of the latent frames. A window needs ``context_frames`` more frames on
each inner side; cropped by those, its samples are the whole decoder's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod

import onnx
from google.protobuf.message import DecodeError
from onnx.utils import Extractor

from antiphon_vocoder.tts.blocked_layout import as_images

_DECODER_PREFIX = "/dec/"
_FIRST_WEIGHT = "dec.conv_pre.weight"
_POINTWISE = frozenset({"LeakyRelu", "Add", "Mul", "Div", "Tanh", "Constant", "Identity"})


class NotSplittable(Exception):
    """The graph is not a VITS export of the known shape; it runs as a whole."""


@dataclass(frozen=True)
class SplitGraph:
    """The two halves as serialized models."""

    encoder: bytes
    """Inputs of the voice to ``boundary`` tensors."""
    decoder: bytes
    """``boundary`` tensors to samples, in the layout that onnxruntime is fastest in."""
    boundary: tuple[str, ...]
    """First the latent (1, channels, frames), then conditions that do not depend on time."""
    samples_per_frame: int
    context_frames: int
    durations: str
    """Encoder output (1, 1, ids) with the frames of each phoneme id; empty when the graph does
    not show it."""


@dataclass(frozen=True)
class _Reach:
    """How far a tensor looks round its own position, in latent frames; its rate is ``scale``."""

    scale: int
    left: float
    right: float


def split_decoder(path: str) -> SplitGraph:
    """Splits the model in this file.

    Raises:
        NotSplittable: naming what is not as expected.
        ValueError: the file is no ONNX model.
    """
    try:
        model = onnx.load(path)
    except DecodeError as error:
        raise ValueError(f"{path} is not an ONNX model") from error
    nodes = [node for node in model.graph.node if node.name.startswith(_DECODER_PREFIX)]
    latent = next((node.input[0] for node in nodes if _FIRST_WEIGHT in node.input), None)
    if latent is None:
        raise NotSplittable(f"no node of the decoder reads {_FIRST_WEIGHT}")
    weights = {tensor.name for tensor in model.graph.initializer}
    made = {name for node in nodes for name in node.output}
    outside = dict.fromkeys(
        name for node in nodes for name in node.input if name and name not in weights | made
    )
    constants = {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    conditions = [name for name in outside if name != latent and name not in constants]
    boundary = (latent, *conditions)
    inputs = [tensor.name for tensor in model.graph.input if tensor.name not in weights]
    output = model.graph.output[0].name
    reach = _receptive_field(nodes, latent, weights, made)
    try:
        extractor = Extractor(model)
        durations = _durations(model.graph.node)
        encoder = extractor.extract_model(inputs, [*boundary, *filter(None, [durations])])
        decoder = extractor.extract_model(list(boundary), [output])
    except (KeyError, ValueError, onnx.checker.ValidationError) as error:
        raise NotSplittable(f"the graph cannot be cut at {boundary}: {error}") from error
    return SplitGraph(
        encoder=encoder.SerializeToString(),
        decoder=as_images(decoder, _DECODER_PREFIX).SerializeToString(),
        boundary=boundary,
        samples_per_frame=reach.scale,
        context_frames=ceil(max(reach.left, reach.right)),
        durations=durations,
    )


def _durations(nodes: Iterable[onnx.NodeProto]) -> str:
    """VITS rounds its durations up; no other part of it rounds up."""
    rounded = [node.output[0] for node in nodes if node.op_type == "Ceil"]
    return rounded[0] if len(rounded) == 1 else ""


def _receptive_field(
    nodes: Sequence[onnx.NodeProto], latent: str, weights: set[str], made: set[str]
) -> _Reach:
    """The reach of the decoder's last tensor; nodes are in topological order."""
    reaches = {latent: _Reach(1, 0.0, 0.0)}
    last = reaches[latent]
    for node in nodes:
        known = [reaches[name] for name in node.input if name in reaches]
        if not known:
            continue
        scale = known[0].scale
        if any(reach.scale != scale for reach in known):
            raise NotSplittable(f"{node.name} joins tensors of different rates")
        source = _Reach(scale, max(r.left for r in known), max(r.right for r in known))
        last = _through(node, source)
        for name in node.output:
            reaches[name] = last
    return last


def _through(node: onnx.NodeProto, source: _Reach) -> _Reach:
    if node.op_type in _POINTWISE:
        return source
    attributes = {a.name: list(a.ints) for a in node.attribute}
    if node.op_type not in ("Conv", "ConvTranspose") or len(attributes["kernel_shape"]) != 1:
        raise NotSplittable(f"{node.name} is a {node.op_type}")
    kernel = attributes["kernel_shape"][0]
    dilation = prod(attributes.get("dilations", [1]))
    stride = prod(attributes.get("strides", [1]))
    before, after = attributes.get("pads", [0, 0])
    span = (kernel - 1) * dilation
    if node.op_type == "Conv":
        if stride != 1 or before + after != span:
            raise NotSplittable(f"{node.name} changes the number of frames")
        return _Reach(
            source.scale,
            source.left + before / source.scale,
            source.right + after / source.scale,
        )
    if span + 1 - before - after != stride:
        raise NotSplittable(f"{node.name} does not multiply the number of frames by its stride")
    return _Reach(
        source.scale * stride,
        source.left + ceil((span - before) / stride) / source.scale,
        source.right + ceil(before / stride) / source.scale,
    )
