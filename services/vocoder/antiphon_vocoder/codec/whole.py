"""Whole clips as steps of a state of their own: streaming and whole share one path."""

from __future__ import annotations

import torch
from torch.nn import functional

from antiphon_vocoder.codec.contract import Codec

CHUNK_FRAMES = 32
"""Frames of a step: few enough to bound memory, many enough for large products."""


def decode_whole(codec: Codec, codes: torch.Tensor, chunk: int = CHUNK_FRAMES) -> torch.Tensor:
    """codes (B, k, frames) to pcm (B, frames * frame_samples)."""
    batch, _, frames = codes.shape
    spec = codec.spec
    if not frames:
        return torch.zeros(batch, 0, device=codec.device)
    state = codec.decoder_state(batch, min(chunk, frames))
    mask = torch.ones(batch, dtype=torch.bool, device=codec.device)
    parts = [codec.decode_step(part, state, None, mask) for part in codes.split(chunk, dim=2)]
    if spec.decode_delay_samples:
        parts.append(codec.decode_flush(state, None, mask))
    return torch.cat(parts, dim=-1)[..., spec.decode_delay_samples :]


def encode_whole(
    codec: Codec, pcm: torch.Tensor, codebooks: int | None, chunk: int = CHUNK_FRAMES
) -> torch.Tensor:
    """pcm (B, samples) to codes (B, codebooks, frames), the tail padded with zeros."""
    spec = codec.spec
    frames = -(-pcm.shape[-1] // spec.frame_samples)
    if not frames:
        count = spec.codebook_count if codebooks is None else codebooks
        return torch.zeros(pcm.shape[0], count, 0, dtype=torch.int64, device=codec.device)
    ahead = spec.encode_lookahead_samples
    pcm = functional.pad(pcm, (0, frames * spec.frame_samples - pcm.shape[-1]))
    pcm = functional.pad(pcm, (0, ahead), value=spec.encode_lookahead_fill)
    state = codec.encoder_state(pcm.shape[0], min(chunk, frames))
    mask = torch.ones(pcm.shape[0], dtype=torch.bool, device=codec.device)
    parts = []
    for first in range(0, frames, chunk):
        last = min(first + chunk, frames)
        window = pcm[..., first * spec.frame_samples : last * spec.frame_samples + ahead]
        parts.append(codec.encode_step(window, state, None, mask, codebooks))
    return torch.cat(parts, dim=2)
