"""A codec whose output shows every mistake of the process round it.

Decoding: the first code of a frame is a pitch, further ones add loudness; the phase, and the
samples that it holds back, live in the slot. Encoding: each code is the frame's mean level plus
what the slot remembers of the frames before. Rows depend on nothing but themselves.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from antiphon_vocoder.codec.contract import CodecSpec
from antiphon_vocoder.codec.state import SlotState

RATE = 24_000
FRAME = 1920
CODEBOOKS = 4
SIZE = 512
BAD_CODE = SIZE - 1
"""A frame with it raises, once the codec is told so."""
NAN_CODE = SIZE - 2
"""A frame with it decodes to NaN."""


class FakeCodec:
    """See the module.

    Args:
        delay: samples by which decoded audio trails.
        lookahead: samples behind its frames that encoding must see.
        first_hop_frames: see CodecSpec.

    Attributes:
        step_seconds: pause in each step, beside ``row_seconds`` for each row.
        raise_on_bad: whether BAD_CODE raises, after the state was changed.
        shapes: (rows, frames) of every step that was run.
    """

    def __init__(self, *, delay: int = 0, lookahead: int = 0, first_hop_frames: int = 1) -> None:
        self.spec = CodecSpec(
            name="fake",
            sample_rate=RATE,
            frame_samples=FRAME,
            codebook_count=CODEBOOKS,
            codebook_size=SIZE,
            control_codes=frozenset({SIZE + 7}),
            decode_delay_samples=delay,
            encode_lookahead_samples=lookahead,
            first_hop_frames=first_hop_frames,
        )
        self.device = torch.device("cpu")
        self.weight_bytes = 0
        self.step_seconds = 0.0
        self.row_seconds = 0.0
        self.raise_on_bad = False
        self.shapes: list[tuple[int, int]] = []
        self.states: list[SlotState] = []

    def decoder_state(self, slots: int, max_frames: int) -> SlotState:
        tensors = {
            "phase": torch.zeros(slots + 1, dtype=torch.float64),
            "held": torch.zeros(slots + 1, self.spec.decode_delay_samples),
            "frames": torch.zeros(slots + 1, dtype=torch.int64),
        }
        state = SlotState(slots, max_frames, tensors)
        self.states.append(state)
        return state

    def encoder_state(self, slots: int, max_frames: int) -> SlotState:
        return SlotState(slots, max_frames, {"level": torch.zeros(slots + 1, dtype=torch.float64)})

    def decode_step(
        self,
        codes: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
    ) -> torch.Tensor:
        batch, _, frames = codes.shape
        assert frames <= state.max_frames
        self._pause(exec_mask, frames)
        phase = state.read("phase", rows, batch).clone()
        count = state.read("frames", rows, batch)
        if self.spec.first_hop_frames > 1:
            starting = exec_mask & (count == 0)
            assert not starting.any() or frames >= self.spec.first_hop_frames or frames < 4
        live = exec_mask.nonzero()[:, 0]
        pcm = torch.zeros(batch, frames * FRAME)
        pcm[live], phase[live] = _tones(codes[live], phase[live])
        targets = state.targets(rows, exec_mask)
        state.write("phase", targets, phase)
        state.write("frames", targets, count + frames)
        if self.raise_on_bad and bool((exec_mask & (codes[:, 0] == BAD_CODE).any(1)).any()):
            raise RuntimeError("scripted failure")
        return self._delayed(pcm, state, rows, targets)

    def _delayed(
        self, pcm: torch.Tensor, state: SlotState, rows: torch.Tensor | None, targets: torch.Tensor
    ) -> torch.Tensor:
        delay = self.spec.decode_delay_samples
        if not delay:
            return pcm
        joined = torch.cat((state.read("held", rows, len(pcm)), pcm), 1)
        state.write("held", targets, joined[:, -delay:])
        return joined[:, :-delay]

    def decode_flush(
        self, state: SlotState, rows: torch.Tensor | None, exec_mask: torch.Tensor
    ) -> torch.Tensor:
        return state.read("held", rows, len(exec_mask)).clone()

    def encode_step(
        self,
        pcm: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
        codebooks: int | None = None,
    ) -> torch.Tensor:
        ahead = self.spec.encode_lookahead_samples
        batch = len(pcm)
        frames = (pcm.shape[1] - ahead) // FRAME
        self._pause(exec_mask, frames)
        level = state.read("level", rows, batch).clone()
        columns = []
        for frame in range(frames):
            seen = pcm[:, frame * FRAME + ahead : (frame + 1) * FRAME + ahead]
            level = (0.5 * level + seen.abs().double().mean(1)).clamp(max=1.0)
            first = (level * (SIZE - 1)).long()
            columns.append(torch.stack([(first + k) % SIZE for k in range(CODEBOOKS)], 1))
        state.write("level", state.targets(rows, exec_mask), level)
        return torch.stack(columns, 2)

    def encode(self, pcm: torch.Tensor, codebooks: int | None = None) -> torch.Tensor:
        state = self.encoder_state(len(pcm), 1 << 20)
        missing = -pcm.shape[1] % FRAME + self.spec.encode_lookahead_samples
        padded = torch.nn.functional.pad(pcm, (0, missing))
        mask = torch.ones(len(pcm), dtype=torch.bool)
        return self.encode_step(padded, state, None, mask)[:, :codebooks]

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        state = self.decoder_state(len(codes), codes.shape[2])
        mask = torch.ones(len(codes), dtype=torch.bool)
        pcm = self.decode_step(codes, state, None, mask)
        held = self.decode_flush(state, None, mask)
        return torch.cat((pcm[:, self.spec.decode_delay_samples :], held), 1)

    def _pause(self, exec_mask: torch.Tensor, frames: int) -> None:
        self.shapes.append((len(exec_mask), frames))
        pause = self.step_seconds + self.row_seconds * len(exec_mask)
        if pause:
            time.sleep(pause)


def whole(codec: FakeCodec, codes: np.ndarray) -> np.ndarray:
    """Samples of the frames (n, k), decoded at once by a codec without scripted trouble."""
    spec = codec.spec
    fresh = FakeCodec(delay=spec.decode_delay_samples)
    padded = np.full((CODEBOOKS, len(codes)), -1, np.int64)
    padded[: codes.shape[1]] = codes.T
    return fresh.decode(torch.from_numpy(padded)[None])[0].numpy()


def _tones(codes: torch.Tensor, phase: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of codes (B, k, T) from these phases on, and the phases behind them."""
    steps = torch.arange(FRAME, dtype=torch.float64)
    parts = []
    for frame in range(codes.shape[2]):
        pitch = (100.0 + 4.0 * codes[:, 0, frame].double()) / RATE
        loud = 0.05 + 0.01 * codes[:, 1:, frame].clamp(-1, 9).add(1).sum(1).float()
        angle = 2 * math.pi * (phase[:, None] + pitch[:, None] * steps)
        wave = torch.sin(angle).float() * loud[:, None]
        parts.append(torch.where((codes[:, 0, frame] == NAN_CODE)[:, None], torch.nan, wave))
        phase = (phase + pitch * FRAME) % 1.0
    return torch.cat(parts, 1), phase
