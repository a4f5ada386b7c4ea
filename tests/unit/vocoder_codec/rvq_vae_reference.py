"""The RVQ-VAE of spec/speech.md section 5.1 in float64, as plainly as it is written."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

Tensors = dict[str, torch.Tensor]


def block(tensors: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """x (C, T)."""
    depthwise = tensors[f"{name}.dwconv.weight"]
    padded = functional.pad(x, (depthwise.shape[2] - 1, 0))
    y = functional.conv1d(
        padded[None], depthwise, tensors[f"{name}.dwconv.bias"], groups=x.shape[0]
    )[0]
    centred = y - y.mean(0)
    y = centred / torch.sqrt(centred.square().mean(0) + 1e-6)
    y = y * tensors[f"{name}.norm.weight"][:, None] + tensors[f"{name}.norm.bias"][:, None]
    y = tensors[f"{name}.pwconv1.weight"][:, :, 0] @ y + tensors[f"{name}.pwconv1.bias"][:, None]
    y = y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
    y = tensors[f"{name}.pwconv2.weight"][:, :, 0] @ y + tensors[f"{name}.pwconv2.bias"][:, None]
    return x + y


def layers(tensors: Tensors, side: str, x: torch.Tensor, rates: dict[int, int]) -> torch.Tensor:
    """x (C, T); ``rates`` gives the stride of the convolutions by layer number."""
    count = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith(f"{side}."))
    for index in range(count):
        name = f"{side}.layers.{index}"
        if f"{name}.dwconv.weight" in tensors:
            x = block(tensors, name, x)
        elif side == "encoder" or index == count - 1:
            x = functional.conv1d(x[None], tensors[f"{name}.weight"], stride=rates[index])[0]
        else:
            x = functional.conv_transpose1d(
                x[None], tensors[f"{name}.weight"], stride=rates[index]
            )[0]
    return x


def window(size: int) -> np.ndarray:
    """Periodic Hann."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)


def spectra(pcm: np.ndarray, size: int, hop: int) -> np.ndarray:
    """(2 bins, frames)."""
    pad = (size - hop) // 2
    padded = np.concatenate([np.zeros(pad), pcm, np.zeros(pad)])
    frames = [
        np.fft.rfft(padded[start : start + size] * window(size))
        for start in range(0, len(padded) - size + 1, hop)
    ]
    stacked = np.stack(frames, axis=1)
    return np.concatenate([stacked.real, stacked.imag])


def samples(parts: np.ndarray, size: int, hop: int) -> np.ndarray:
    """parts (2 bins, frames): magnitudes, then phases."""
    bins = size // 2 + 1
    height, phase = parts[:bins], parts[bins:]
    magnitude = 100 * np.exp(-np.logaddexp(0, math.log(100) - height))
    values = magnitude * np.exp(1j * phase)
    values[0] = magnitude[0] * np.cos(phase[0])
    values[-1] = magnitude[-1] * np.cos(phase[-1])
    shape = window(size)
    frames = parts.shape[1]
    total = np.zeros((frames - 1) * hop + size)
    weight = np.zeros_like(total)
    for index in range(frames):
        frame = np.fft.irfft(values[:, index], size)
        frame = np.minimum(np.maximum(frame, -shape), shape) * shape
        total[index * hop : index * hop + size] += frame
        weight[index * hop : index * hop + size] += shape**2
    pad = (size - hop) // 2
    return (total / np.where(weight > 0, weight, 1))[pad:-pad]


def decode(tensors: Tensors, codes: torch.Tensor, config: dict) -> np.ndarray:
    """codes (k, frames) without control codes."""
    latent = sum(tensors[f"prvq.mus_list.{i}"][row] for i, row in enumerate(codes)).T
    strides = {
        i * (config["num_blocks"] + 1): rate for i, rate in enumerate(reversed(config["rates"]))
    }
    strides[(config["num_blocks"] + 1) * len(config["rates"])] = 1
    parts = layers(tensors, "decoder", latent, strides).numpy()
    return samples(parts, config["n_fft"], config["hop_length"])


def encode(tensors: Tensors, pcm: np.ndarray, config: dict) -> torch.Tensor:
    """pcm (frames * samples) to codes (k, frames)."""
    parts = torch.from_numpy(spectra(pcm, config["n_fft"], config["hop_length"]))
    strides = {i * (config["num_blocks"] + 1): rate for i, rate in enumerate([1, *config["rates"]])}
    residual = layers(tensors, "encoder", parts, strides).T.clone()
    codes = []
    for level in range(config["num_quantizers"]):
        book = tensors[f"prvq.mus_list.{level}"]
        distance = (residual[:, None] - book).square().sum(2)
        codes.append(distance.argmin(1))
        residual = residual - book[codes[-1]]
    return torch.stack(codes)
