"""Work of a CUDA device that is recorded as graphs: steps of the decoder, and the full window.

A step is short for the device and long for the host that launches it, so everything between the
tokens of a step and the likeliest next ones is one replay: one copy in, one copy out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from antiphon_kernels.paged_attention import new_workspace
from antiphon_nn.graph_recorder import GraphRecorder

from antiphon_vocoder.recognition.whisper_torch.decoder import Decoder, RowInput, StepInputs
from antiphon_vocoder.recognition.whisper_torch.encoder import Encoder
from antiphon_vocoder.recognition.whisper_torch.memory import Memory
from antiphon_vocoder.recognition.whisper_torch.rules import Allowed, LogitRules, Scores
from antiphon_vocoder.recognition.whisper_torch.weights import WhisperShape

_FIRST_RUNGS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SINGLE = 4
"""Columns of a token: itself, its position, its slot, its context."""


class RecordedSteps:
    """Steps of up to ``tokens`` tokens, each a row of its own: a row's earlier tokens are stored
    before any is attended to.

    Args:
        decoder, memory, rules: of the model.
        shape: its sizes.
        tokens: most of one step; a step with more is not recorded.
        top: likeliest next tokens that are told of each.
        device: CUDA, with its index.
    """

    def __init__(
        self,
        decoder: Decoder,
        memory: Memory,
        rules: LogitRules,
        shape: WhisperShape,
        *,
        tokens: int,
        top: int,
        device: torch.device,
    ) -> None:
        self._decoder, self._memory, self._rules, self._shape = decoder, memory, rules, shape
        self.tokens, self._top = tokens, top
        self._widths = (_SINGLE, Allowed.COLUMNS, memory.row_pages, memory.place_pages)
        size = (tokens, sum(self._widths))
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=True)
        self._given = torch.zeros(size, dtype=torch.int32, device=device)
        self._padding = np.zeros(size[1], np.int32)
        self._padding[_SINGLE - 1] = 1
        self._starts = torch.arange(tokens + 1, dtype=torch.int32, device=device)
        self._audio_contexts = torch.full(
            (tokens,), shape.source_positions, dtype=torch.int32, device=device
        )
        self._found = torch.zeros((tokens, 2 * top + 1), device=device)
        self._logprobs = torch.zeros((tokens, shape.vocabulary), device=device)
        heads = shape.decoder_heads
        self._workspace = new_workspace(heads, heads, shape.width // heads, 1, device)
        recorder = GraphRecorder(device)
        rungs = [rung for rung in _FIRST_RUNGS if rung < tokens] + [tokens]
        self._host.numpy()[:] = self._padding
        self._given.copy_(self._host)
        # The largest first: the smaller ones find the memory that it left.
        self._graphs = {
            rung: recorder.record(partial(self._work, rung)) for rung in reversed(rungs)
        }

    def __call__(
        self, rows: Sequence[RowInput], picked: Sequence[int], allowed: Sequence[Allowed]
    ) -> Scores:
        """Runs the rows' tokens, at most ``tokens``.

        Args:
            rows: at least one.
            picked: of all tokens, one after the other, those whose successors are asked for.
            allowed: what may follow each of them.
        """
        host, memory = self._host.numpy(), self._memory
        tables, audio = (sum(self._widths[:column]) for column in (2, 3))
        at = 0
        for row in rows:
            for position, token in enumerate(row.tokens, row.first):
                host[at, :_SINGLE] = token, position, memory.slot(row.row, position), position + 1
                host[at, tables:audio] = memory.tables[row.row].numpy()
                host[at, audio:] = row.audio.numpy()
                at += 1
        rung = min(rung for rung in self._graphs if rung >= at)
        host[at:rung] = self._padding
        host[picked, _SINGLE:tables] = [one.columns for one in allowed]
        # The copy has ended before the next step writes here: that needs this one's result.
        self._given[:rung].copy_(self._host[:rung], non_blocking=True)
        self._graphs[rung].replay()
        found = self._found[:rung].cpu()[picked]
        return Scores(
            tokens=found[:, : self._top].long().tolist(),
            logprobs=found[:, self._top : -1].tolist(),
            no_speech=found[:, -1].tolist(),
            rows=[self._logprobs[place] for place in picked],
        )

    def _work(self, rung: int) -> None:
        single, allowed, table, audio = self._given[:rung].split(self._widths, dim=1)
        step = StepInputs(
            tokens=single[:, 0].contiguous(),
            positions=single[:, 1].long(),
            slots=single[:, 2].long(),
            starts=self._starts[: rung + 1],
            contexts=single[:, 3].contiguous(),
            tables=table.contiguous(),
            audio_starts=self._starts[: rung + 1],
            audio_contexts=self._audio_contexts[:rung],
            audio_tables=audio.contiguous(),
            longest=1,
            workspace=self._workspace,
        )
        logits = self._decoder.logits(self._decoder.run(step))
        silent, logprobs = self._rules(logits, allowed)
        likeliest = logprobs.topk(self._top, dim=1)
        found = (likeliest.indices.float(), likeliest.values, silent[:, None])
        self._found[:rung] = torch.cat(found, dim=1)
        self._logprobs[:rung] = logprobs


class RecordedWindow:
    """The encoder over a window of full length.

    Args:
        encoder: of the model.
        shape: its sizes.
        device: CUDA, with its index.
    """

    def __init__(self, encoder: Encoder, shape: WhisperShape, device: torch.device) -> None:
        size = (shape.mel_bands, 2 * shape.source_positions)
        self._features = torch.zeros(size, device=device)
        self._encoded = torch.zeros(0)

        def work() -> None:
            self._encoded = encoder(self._features)

        self._graph = GraphRecorder(device).record(work)

    def fits(self, features: torch.Tensor) -> bool:
        """Whether these (bands, frames) are a full window."""
        return features.shape == self._features.shape

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """features (bands, frames) to (frames / 2, width), which the next call overwrites."""
        self._features.copy_(features)
        self._graph.replay()
        return self._encoded
