"""Rewrites a waveform decoder so that onnxruntime computes it in its blocked layout.

onnxruntime keeps images in blocks of channels (NCHWc) through convolutions and what is pointwise
between them, and has no such layout for sequences. The packaged voice's decoder costs a fifth less
as an image of height 1.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper

_HEIGHT = "image_height_axis"
_CONVOLUTIONS = ("Conv", "ConvTranspose")


def as_images(decoder: onnx.ModelProto, prefix: str) -> onnx.ModelProto:
    """The decoder with each sequence (n, channels, time) held as (n, channels, 1, time).

    Args:
        decoder: a graph whose nodes of ``prefix`` are one-dimensional convolutions and pointwise;
            it is changed in place.
        prefix: of the names of the nodes to rewrite; the last of them gives their one result.

    Returns:
        The same model; unchanged where a pointwise node reads a constant of more than one element,
        which would no longer meet its axis.
    """
    graph = decoder.graph
    nodes = [node for node in graph.node if node.name.startswith(prefix)]
    sizes = {tensor.name: prod(tensor.dims) for tensor in graph.initializer} | _constants(graph)
    pointwise = [node for node in nodes if node.op_type not in _CONVOLUTIONS]
    if any(sizes.get(name, 1) > 1 for node in pointwise for name in node.input):
        return decoder
    kernels = {tensor.name: tensor for tensor in graph.initializer}
    images = {tensor.name: f"{tensor.name}_image" for tensor in graph.input}
    for node in nodes:
        if node.op_type in _CONVOLUTIONS:
            _raise_rank(node, kernels[node.input[1]])
        for place, name in enumerate(node.input):
            node.input[place] = images.get(name, name)
    last = nodes[-1]
    result, last.output[0] = last.output[0], f"{last.output[0]}_image"
    graph.initializer.append(numpy_helper.from_array(np.array([2], np.int64), _HEIGHT))
    behind = list(graph.node).index(last) + 1
    graph.node.insert(behind, helper.make_node("Squeeze", [last.output[0], _HEIGHT], [result]))
    for sequence, image in images.items():
        graph.node.insert(0, helper.make_node("Unsqueeze", [sequence, _HEIGHT], [image]))
    return decoder


def _constants(graph: onnx.GraphProto) -> dict[str, int]:
    """Elements of what Constant nodes give."""
    return {
        node.output[0]: prod(attribute.t.dims)
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }


def _raise_rank(convolution: onnx.NodeProto, kernel: onnx.TensorProto) -> None:
    """Height 1 in front of the convolution's one axis, in its attributes and its kernel."""
    for attribute in convolution.attribute:
        sizes = list(attribute.ints)
        if attribute.name == "pads":
            attribute.ints[:] = [0, sizes[0], 0, sizes[1]]
        elif attribute.name == "output_padding":
            attribute.ints[:] = [0, *sizes]
        elif sizes:
            attribute.ints[:] = [1, *sizes]
    if len(kernel.dims) == 3:
        kernel.dims[:] = [*kernel.dims[:2], 1, kernel.dims[2]]
