"""Whisper on a CUDA device: seconds of audio a second, beside transformers with the same weights.

Two models, greedy. ``turbo`` has the sizes of whisper-large-v3-turbo with random weights, drawn on
the device and kept in a temporary directory; an excerpt is 30 s of noise and gets a fixed number of
tokens. ``tiny`` is the packaged one with its own weights; it hears up to 64 clips of two spoken
sentences. Ours has so many excerpts in flight, transformers makes batches of as many. Speed counts
all from samples to tokens. Ours encodes a clip's own length and 1 s, the peer always 30 s, which
makes no difference to ``turbo``.

Beside it stand ms of 30 s of audio in the features (ours on one core) and in the encoder (ours one
window after the other, the peer's a batch at once), and ms of a step of the decoder, each with the
share of its floor: bytes at the measured copy rate or products at the measured matrix rate,
whichever is longer. The peer's step is the difference of long and short texts. What fails is
printed and left out, and all else goes on.

    python -m bench.spoken_clips FILE.npz            # where the packaged voice is installed
    python -m bench.gpu_whisper [--clips FILE.npz] [--models turbo] [--precision fp16 bf16]
        [--lanes 1 8 32 64] [--bars] [--json FILE]

Without ``--clips`` the voice speaks here.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from antiphon_vocoder.recognition.whisper.features import RATE
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary
from antiphon_vocoder.recognition.whisper.window import SECONDS
from antiphon_vocoder.recognition.whisper_torch.weights import Storage, WhisperShape

from bench import gpu_command
from bench.gpu_kernels import BYTES_PER_S, OPERATIONS_PER_S
from bench.spoken_clips import read_clips, spoken_clips
from bench.whisper_checkpoints import converted_checkpoint, drawn_checkpoint
from bench.whisper_sides import PROMPT, Clips, Load, Ours, Speed, TransformersWhisper

T = TypeVar("T")

LANES = (1, 8, 32, 64)
NEW_TOKENS = 64
CLIPS = 64
PAUSE = np.zeros(RATE * 3 // 10, np.float32)
"""Between two sentences."""
REPEATS = 3
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

TURBO: dict[str, Any] = {
    "d_model": 1280,
    "num_mel_bins": 128,
    "encoder_layers": 32,
    "decoder_layers": 4,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
}
"""Sizes of whisper-large-v3-turbo."""

SMALL: dict[str, Any] = {
    "d_model": 64,
    "num_mel_bins": 80,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
}
"""For trying the script on a host."""


@dataclass(frozen=True)
class Cell:
    """One measured point; a side that failed is None.

    Attributes:
        encoder_floor: ms, None without ours.
        step_floor: ms of a step with as many rows as ours had.
        equal: share of the texts in which both sides agree, if both are there.
    """

    model: str
    precision: str
    lanes: int
    ours: Speed | None
    peer: Speed | None
    encoder_floor: float | None
    step_floor: float | None
    equal: float | None


def encoder_floor(shape: WhisperShape, item_bytes: int) -> float:
    """ms that one window's products, or reading the weights, take at least."""
    width, positions = shape.width, shape.source_positions
    layer = 4 * width**2 + 2 * width * shape.encoder_inner
    first, second = 3 * shape.mel_bands * width, 3 * width**2
    weights = shape.encoder_layers * layer + first + second
    multiplied = (shape.encoder_layers * layer + 2 * first + second) * positions
    multiplied += shape.encoder_layers * 2 * positions**2 * width
    return _floor(weights * item_bytes, 2 * multiplied)


def step_floor(shape: WhisperShape, rows: float, texts: float, item_bytes: int) -> float:
    """ms that reading weights and caches, or the products, take at least.

    Args:
        shape: the model's sizes.
        rows: texts in the step.
        texts: positions of each, on average.
        item_bytes: of a weight and of a cached value.
    """
    width = shape.width
    layer = 6 * width**2 + 2 * width * shape.decoder_inner
    weights = shape.decoder_layers * layer + shape.vocabulary * width
    cached = rows * shape.decoder_layers * 2 * width * (shape.source_positions + texts)
    return _floor((weights + cached) * item_bytes, 2 * (rows * weights + cached))


def _floor(read: float, operations: float) -> float:
    return 1e3 * max(read / BYTES_PER_S, operations / OPERATIONS_PER_S)


class _Run:
    """What was asked for, and what came of it so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.raw: dict[str, Any] = {"cells": [], "failures": {}, "torch": torch.__version__}

    def attempt(self, name: str, work: Callable[[], T]) -> T | None:
        """The result of ``work``; None, and a line that says so, where it fails."""
        try:
            return work()
        except Exception as error:  # the other figures count all the same
            problem = f"{type(error).__name__}: {error}"
        self.raw["failures"][name] = problem
        print(f"  {name} failed: {problem}", flush=True)
        _release()
        return None

    def prepare(self, model: str, directory: Path) -> tuple[Path, Clips]:
        """A checkpoint, and clips for it."""
        began = time.perf_counter()
        options = self._options
        if model == "tiny":
            clips = joined_clips(read_clips(options.clips) if options.clips else spoken_clips())
            made = converted_checkpoint(directory)
        else:
            clips = [
                np.random.default_rng(seed).normal(0, 0.05, RATE * SECONDS).astype(np.float32)
                for seed in range(max(options.lanes))
            ]
            sizes = SMALL if options.small else TURBO
            made = drawn_checkpoint(directory, torch.device(options.device), **sizes)
            _release()
        print(f"{model}: checkpoint and clips in {time.perf_counter() - began:.1f} s", flush=True)
        return made, clips

    def measure(self, model: str, precision: Storage, directory: Path, clips: Clips) -> None:
        """All lanes of a model in a precision."""
        options, name = self._options, f"{model} {precision}"
        vocabulary = Vocabulary(directory / "tokenizer.json")
        ours = self.attempt(
            f"{name} ours",
            lambda: Ours(directory, options.device, precision, max(options.lanes)),
        )
        peer = self.attempt(
            f"{name} peer", lambda: TransformersWhisper(directory, options.device, precision)
        )
        for lanes in options.lanes:
            load = self._load(model, clips, lanes)
            at = f"{name} {lanes}"
            mine = self.attempt(f"{at} ours", partial(ours.measure, load)) if ours else None
            theirs = (
                self.attempt(f"{at} peer", partial(peer.measure, load, vocabulary))
                if peer
                else None
            )
            shape = ours.shape if ours else None
            cell = _cell(model, precision, load, shape, mine, theirs)
            self.raw["cells"].append(asdict(cell))
            print(_line(cell), flush=True)
        if ours:
            ours.backend.close()

    def _load(self, model: str, clips: Clips, lanes: int) -> Load:
        options = self._options
        if model == "turbo":
            return Load(clips[:lanes], lanes, options.tokens, True, options.repeats)
        heard = clips[: 2 if options.small else max(16, 2 * lanes)]
        return Load(heard, min(lanes, len(heard)), options.tokens, False, options.repeats)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for and prints it as it comes."""
    run = _Run(options)
    with ExitStack() as stack:
        prepared = {}
        for model in options.models:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            made = run.attempt(model, partial(run.prepare, model, directory))
            if made is not None:
                prepared[model] = made
        for precision in options.precision:
            for model, (directory, clips) in prepared.items():
                run.attempt(
                    f"{model} {precision}",
                    partial(run.measure, model, precision, directory, clips),
                )
                _release()
    return run.raw


def joined_clips(sentences: Clips) -> Clips:
    """Two sentences each, with a pause between them: up to 64 different clips."""
    pairs = list(combinations(sentences, 2))
    both = [*pairs, *[(second, first) for first, second in pairs]][:CLIPS]
    return [np.concatenate((first, PAUSE, second)) for first, second in both]


def _cell(
    model: str,
    precision: str,
    load: Load,
    shape: WhisperShape | None,
    ours: tuple[Speed, list[str]] | None,
    peer: tuple[Speed, list[str]] | None,
) -> Cell:
    equal = encoder = step = None
    if ours and shape:
        size = ITEM_BYTES[precision]
        encoder = encoder_floor(shape, size)
        step = step_floor(shape, ours[0].rows, len(PROMPT) + load.new_tokens / 2, size)
    if ours and peer:
        pairs = list(zip(ours[1], peer[1], strict=True))
        equal = sum(mine.strip() == other.strip() for mine, other in pairs) / len(pairs)
    return Cell(
        model,
        precision,
        load.lanes,
        ours and ours[0],
        peer and peer[0],
        encoder,
        step,
        equal,
    )


def _line(cell: Cell) -> str:
    name = f"  {cell.model} {cell.precision} {cell.lanes:2d} lanes"
    ours, peer = cell.ours, cell.peer
    if ours is None or peer is None:
        only = ours or peer
        return f"{name}: {'ours' if ours else 'peer'} alone {only}" if only else f"{name}: nothing"
    assert cell.encoder_floor and cell.step_floor
    return (
        f"{name}: {ours.audio:7.1f} s of audio a second, peer {peer.audio:7.1f} "
        f"({ours.audio / peer.audio:5.2f} x), texts equal {cell.equal:4.0%}\n"
        f"      step {ours.step:7.3f} ms with {ours.rows:4.1f} rows, floor {cell.step_floor:6.3f} "
        f"({cell.step_floor / ours.step:4.0%}), peer {peer.step:7.3f} "
        f"({peer.step / ours.step:5.2f} x)\n"
        f"      encoder {ours.encoder:7.3f} ms, floor {cell.encoder_floor:6.3f} "
        f"({cell.encoder_floor / ours.encoder:4.0%}), peer {peer.encoder:7.3f} "
        f"({peer.encoder / ours.encoder:5.2f} x); features {ours.features:6.2f} ms, "
        f"peer {peer.features:6.2f}"
    )


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        # A device that is lost has nothing to give back, and what was measured still counts.
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def judge(raw: dict[str, Any]) -> int:
    """Prints the bars of what was measured; the exit status to use."""
    # Here, so that a machine without psutil can still measure.
    from bench.report import Report

    report = Report("whisper_gpu")
    for cell in raw["cells"]:
        if cell["precision"] == "fp16" and cell["ours"] and cell["peer"]:
            ratio = cell["ours"]["audio"] / cell["peer"]["audio"]
            report.add(f"{cell['model']}_over_peer_{cell['lanes']}", round(ratio, 2), cell)
    return max(report.finish(), int(bool(raw["failures"])))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--models", nargs="+", choices=("turbo", "tiny"), default=["turbo", "tiny"])
    parser.add_argument("--precision", nargs="+", choices=ITEM_BYTES, default=["fp16"])
    parser.add_argument("--lanes", nargs="+", type=int, default=list(LANES))
    parser.add_argument("--tokens", type=int, default=NEW_TOKENS, help="most of a text")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--clips", type=Path, help="spoken sentences, see bench.spoken_clips")
    parser.add_argument("--bars", action="store_true", help="judge against bars.toml")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(gpu_command.run(parse(sys.argv[1:]), measure, judge))
