"""Mimi on processor cores: ms of an 80 ms frame, streaming, beside transformers and moshi.

Random weights of the published size, one stream, 32 codebooks, one and two threads. transformers'
``MimiModel`` decodes whole clips only (its convolutions of the decoder keep no state), so its
decode figure is a clip's time over its frames; its encoder streams. kyutai's package ``moshi``
joins where it can be imported.

    python -m bench.codec_cpu [--threads 1 2] [--frames 40] [--peer DIRECTORY]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from antiphon_vocoder.codec.contract import Precision
from antiphon_vocoder.codec.mimi import Mimi

from bench.random_codec import random_mimi

FRAME_MS = 80.0


def per_frame(run: Callable[[], object], frames: int) -> tuple[float, float]:
    """ms of wall and of processor time a call, medians; the latter is fair on a busy machine."""
    walls, cpus = [], []
    for _ in range(frames + 2):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        walls.append((time.perf_counter() - wall) * 1e3)
        cpus.append((time.process_time() - cpu) * 1e3)
    return statistics.median(walls[2:]), statistics.median(cpus[2:])


def show(name: str, threads: int, wall: float, cpu: float) -> None:
    """One line, with the share of real time."""
    print(
        f"{name:34s} {threads} threads  {wall:8.1f} ms a frame ({wall / FRAME_MS:5.2f} of real "
        f"time), {cpu:8.1f} ms of processor",
        flush=True,
    )


def ours(codec: Mimi, precision: str, threads: int, frames: int) -> None:
    """Steps of one frame on one slot."""
    mask = torch.ones(1, dtype=torch.bool)
    codes = torch.randint(0, codec.spec.codebook_size, (1, codec.spec.codebook_count, 1))
    pcm = torch.randn(1, codec.spec.frame_samples) * 0.3
    decoder, encoder = codec.decoder_state(1, 1), codec.encoder_state(1, 1)
    timed = per_frame(lambda: codec.decode_step(codes, decoder, None, mask), frames)
    show(f"antiphon decode {precision}", threads, *timed)
    timed = per_frame(lambda: codec.encode_step(pcm, encoder, None, mask), frames)
    show(f"antiphon encode {precision}", threads, *timed)


@torch.no_grad()
def transformers_peer(threads: int, frames: int) -> None:
    """Decode of a clip, and encode one frame after another."""
    from transformers import MimiConfig, MimiModel

    model = MimiModel(MimiConfig()).eval()
    codes = torch.randint(0, 2048, (1, 32, frames))
    wall, cpu = per_frame(lambda: model.decode(codes), 1)
    show("transformers decode, whole clip", threads, wall / frames, cpu / frames)
    pcm = torch.randn(1, 1, 1920) * 0.3
    held: dict[str, Any] = {}

    def hop() -> None:
        out = model.encode(pcm, use_streaming=True, **held)
        held.update(encoder_cache=out.encoder_cache, padding_cache=out.padding_cache)

    show("transformers encode, streaming", threads, *per_frame(hop, frames))


@torch.no_grad()
def moshi_peer(threads: int, frames: int) -> None:
    """Its streaming steps."""
    try:
        from moshi.models.loaders import get_mimi  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        print(f"moshi cannot be imported: {error}")
        return
    model = get_mimi(None, device="cpu", num_codebooks=32)
    model.streaming_forever(1)
    codes = torch.randint(0, 2048, (1, 32, 1))
    pcm = torch.randn(1, 1, 1920) * 0.3
    show("moshi decode", threads, *per_frame(lambda: model.decode(codes), frames))
    show("moshi encode", threads, *per_frame(lambda: model.encode(pcm), frames))


def main(arguments: Sequence[str]) -> int:
    """Measures each thread count in turn."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--peer", type=Path, help="a directory to import moshi from")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args(arguments)
    if options.peer:
        sys.path.insert(0, str(options.peer.resolve()))
    wanted: list[Precision] = options.precision
    codecs = {precision: random_mimi("cpu", precision) for precision in wanted}
    for threads in options.threads:
        torch.set_num_threads(threads)
        for precision, codec in codecs.items():
            ours(codec, precision, threads, options.frames)
        if not options.no_peers:
            transformers_peer(threads, options.frames)
            moshi_peer(threads, options.frames)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
