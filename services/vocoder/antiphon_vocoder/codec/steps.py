"""Checks that every codec makes of a step before it touches the device."""

from __future__ import annotations

import torch

from antiphon_vocoder.codec.contract import CodecSpec
from antiphon_vocoder.codec.state import SlotState


def frames_of_codes(spec: CodecSpec, codes: torch.Tensor, state: SlotState) -> int:
    """Frames of codes (B, k, T).

    Raises:
        ValueError: k or T does not fit codec and state.
    """
    if not 1 <= codes.shape[1] <= spec.codebook_count:
        raise ValueError(
            f"codes have {codes.shape[1]} codebooks, {spec.name} has 1..{spec.codebook_count}"
        )
    return _within(codes.shape[2], state)


def frames_of_pcm(spec: CodecSpec, pcm: torch.Tensor, state: SlotState) -> int:
    """Frames of pcm (B, T * frame_samples + encode_lookahead_samples); errors as above."""
    frames, left = divmod(pcm.shape[-1] - spec.encode_lookahead_samples, spec.frame_samples)
    if left or frames < 1:
        raise ValueError(
            f"{pcm.shape[-1]} samples are not frames of {spec.frame_samples} and the "
            f"{spec.encode_lookahead_samples} behind them"
        )
    return _within(frames, state)


def depth_of(spec: CodecSpec, codebooks: int | None) -> int:
    """How many codebooks to encode; ValueError for more than there are, or none."""
    depth = spec.codebook_count if codebooks is None else codebooks
    if not 1 <= depth <= spec.codebook_count:
        raise ValueError(f"codebooks is {depth}, {spec.name} has 1..{spec.codebook_count}")
    return depth


def _within(frames: int, state: SlotState) -> int:
    if not 1 <= frames <= state.max_frames:
        raise ValueError(f"a step of {frames} frames, the state holds 1..{state.max_frames}")
    return frames
