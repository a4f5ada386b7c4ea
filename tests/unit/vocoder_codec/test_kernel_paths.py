"""The paths that CUDA takes, with the kernels' references in the kernels' place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from antiphon_kernels.causal_taps import split
from antiphon_vocoder.codec import causal, transformer
from antiphon_vocoder.codec.contract import Codec
from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.registry import load
from unit.vocoder_codec.test_oracles import draw_codes, draw_pcm

FRAMES, BATCH = 12, 3


def use_kernels(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Sends every convolution and step to the kernels' operations; what they were used for."""
    used: set[str] = set()

    def fuses(rows: int, channels: int, outputs: int) -> bool:
        used.add("convolution")
        return True

    def in_place(device: torch.device, steps: int) -> bool:
        used.add("attention")
        return True

    monkeypatch.setattr(causal, "fuses", fuses)
    monkeypatch.setattr(transformer, "_attends_in_place", in_place)
    monkeypatch.setattr(Products, "kernel_weights", lambda self, weight: split(weight))
    return used


def stream(codec: Codec, codes: torch.Tensor, pcm: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Decoded and encoded in steps of 1 to 3 frames; in those of 2 the last row is masked."""
    decoder, encoder = (make(BATCH, 3) for make in (codec.decoder_state, codec.encoder_state))
    sound, found, at = [], [], 0
    hop = codec.spec.frame_samples
    for size in (1, 2, 3, 1, 2, 3):
        mask = torch.tensor([True, True, size != 2])
        rows = torch.tensor([2, 0, 1])
        part = codec.decode_step(codes[:, :, at : at + size], decoder, rows, mask)
        sound.append(part[mask].flatten())
        given = pcm[:, at * hop : (at + size) * hop]
        found.append(codec.encode_step(given, encoder, rows, mask)[mask].flatten())
        at += size
    return torch.cat(sound), torch.cat(found)


def test_streams_equal_the_plain_path(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load(checkpoint("mimi"))
    codes, pcm = draw_codes(plain, FRAMES, BATCH), draw_pcm(plain, FRAMES, BATCH)
    wanted, wanted_codes = stream(plain, codes, pcm)
    used = use_kernels(monkeypatch)
    sound, found = stream(load(checkpoint("mimi")), codes, pcm)
    assert used == {"attention", "convolution"}
    # The split weights have 16 bits.
    torch.testing.assert_close(sound, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))
    assert (found == wanted_codes).double().mean() > 0.97
