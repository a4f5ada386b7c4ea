"""A step of one shape, bound to fixed buffers so that a recording of it can run any streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_vocoder.codec.contract import ABSENT, Codec
from antiphon_vocoder.codec.state import SlotState
from antiphon_vocoder.codec_engine.device import StepDevice
from antiphon_vocoder.codec_engine.stream import TAIL, StepKey
from antiphon_vocoder.codec_messages import Stage

_HOST_COPIES = 2
"""One step is prepared while the one before it runs."""


class BoundStep:
    """Buffers and device work of the steps of one key and row count.

    Inputs travel as one copy to the device (values, rows, mask), outputs as one back: float32
    samples (rows, width + 1), whose last column is 1 where the row is finite, or int32 codes
    (rows, width), frame after frame.

    Args:
        codec: whose step it is.
        state: of the key's direction.
        rows: B.
    """

    def __init__(
        self, device: StepDevice, codec: Codec, state: SlotState, key: StepKey, rows: int
    ) -> None:
        self.key = key
        self.rows = rows
        self.recorded = False
        self._device = device
        self._codec = codec
        self._state = state
        spec = codec.spec
        self._decodes = key.stage is Stage.DECODE
        if self._decodes:
            shape, kind = (rows, spec.codebook_count, key.frames), torch.int64
            self.width = key.frames * spec.frame_samples or spec.decode_delay_samples
        else:
            samples = key.frames * spec.frame_samples + spec.encode_lookahead_samples
            shape, kind = (rows, samples), torch.float32
            self.width = key.frames * spec.codebook_count
        self._inputs = _Packed(shape, kind)
        self._device_inputs = torch.zeros(
            self._inputs.size, dtype=torch.uint8, device=device.device
        )
        self._values, self._rows, self._mask = self._inputs.views(self._device_inputs)
        columns = self.width + 1 if self._decodes else self.width
        self._output = torch.zeros(
            (rows, columns),
            dtype=torch.float32 if self._decodes else torch.int32,
            device=device.device,
        )
        self._host_inputs = [device.host_buffer(self._inputs.size) for _ in range(_HOST_COPIES)]
        self._host_outputs = [device.host_buffer(self._output.nbytes) for _ in range(_HOST_COPIES)]
        self._turn = 0
        self._enqueue: Callable[[], None] = self._work

    def record(self) -> None:
        """Warms up with padding rows only, and records where the device does."""
        self._fill([], [])
        self._device_inputs.copy_(self._host_inputs[self._turn])
        self._enqueue = self._device.record(self._work)
        self.recorded = True

    def launch(
        self, values: Sequence[NDArray[Any]], slots: Sequence[int]
    ) -> Callable[[], list[NDArray[Any] | Exception]]:
        """Enqueues a step of at most B streams; returns what waits for their outputs.

        A step that raises leaves the slots as they were.

        Args:
            values: of each stream codes (T, k), or samples (T * frame + lookahead,).
            slots: their rows of the state.
        """
        self._fill(values, slots)
        turn = self._turn
        self._turn = (turn + 1) % _HOST_COPIES
        self._device_inputs.copy_(self._host_inputs[turn], non_blocking=True)
        replays = self.recorded and self._device.runs_behind
        if replays:
            self._enqueue()
        else:
            self._run_undoably(slots)
        host = self._host_outputs[turn].view(self._output.dtype).view(self._output.shape)
        host.copy_(self._output, non_blocking=True)
        wait = self._device.marker()
        count = len(slots)

        def outputs() -> list[NDArray[Any] | Exception]:
            wait()
            return self._read(host[:count].numpy())

        return outputs

    def _run_undoably(self, slots: Sequence[int]) -> None:
        """A recording cannot raise half-way; Python can, with some layers already advanced."""
        rows = torch.tensor(list(slots), dtype=torch.int64, device=self._device.device)
        saved = {name: tensor.index_select(0, rows) for name, tensor in self._state.tensors.items()}
        try:
            self._enqueue()
        except Exception:
            for name, tensor in self._state.tensors.items():
                tensor.index_copy_(0, rows, saved[name])
            raise

    @torch.inference_mode()
    def _work(self) -> None:
        if not self._decodes:
            codes = self._codec.encode_step(self._values, self._state, self._rows, self._mask)
            self._output.copy_(codes.transpose(1, 2).reshape(self.rows, -1))
            return
        if self.key.frames == TAIL:
            pcm = self._codec.decode_flush(self._state, self._rows, self._mask)
        else:
            pcm = self._codec.decode_step(self._values, self._state, self._rows, self._mask)
        self._output[:, : self.width] = pcm
        self._output[:, self.width] = pcm.abs().amax(1) < torch.inf

    def _fill(self, values: Sequence[NDArray[Any]], slots: Sequence[int]) -> None:
        held, rows, mask = self._inputs.arrays(self._host_inputs[self._turn])
        count = len(slots)
        rows[:count] = slots
        rows[count:] = self._state.null_row
        mask[:count] = True
        mask[count:] = False
        if self._decodes and self.key.frames != TAIL:
            held[:count] = ABSENT
            for row, codes in enumerate(values):
                held[row, : codes.shape[1]] = codes.T
            held[count:] = 0
        elif not self._decodes:
            held[count:] = 0.0
            for row, samples in enumerate(values):
                held[row] = samples

    def _read(self, host: NDArray[Any]) -> list[NDArray[Any] | Exception]:
        if not self._decodes:
            return list(host.copy())
        finite = host[:, self.width] == 1.0
        samples = host[:, : self.width].copy()
        return [
            row if good else ArithmeticError("the decoder's output is not finite")
            for row, good in zip(samples, finite, strict=True)
        ]


class _Packed:
    """Values, rows and mask of a step as one run of bytes."""

    def __init__(self, shape: tuple[int, ...], kind: torch.dtype) -> None:
        self._shape = shape
        self._kind = kind
        values = int(np.prod(shape)) * kind.itemsize
        self._rows_at = -(-values // 8) * 8
        self._values_size = values
        self._mask_at = self._rows_at + shape[0] * 8
        self.size = self._mask_at + shape[0]

    def views(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(values, rows (B,) int64, mask (B,) bool) in these bytes."""
        values = packed[: self._values_size].view(self._kind).view(self._shape)
        rows = packed[self._rows_at : self._mask_at].view(torch.int64)
        return values, rows, packed[self._mask_at :].view(torch.bool)

    def arrays(self, packed: torch.Tensor) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The same as arrays."""
        values, rows, mask = self.views(packed)
        return values.numpy(), rows.numpy(), mask.numpy()
