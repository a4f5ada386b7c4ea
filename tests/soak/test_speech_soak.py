"""Ten minutes of speech and recognition at once, and streams that are an hour long."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core.rpc.streams import messages, open_stream
from support.speech_model import CODEBOOKS, FRAME_RATE, FRAME_SAMPLES, SIZE, small_codec

from bench.report import BENCH
from bench.speech_service import TEXTS, SpeechService, speak, speech_service
from bench.speech_soak import soak

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(0)]

MEMORY_GROWTH = 0.01
"""Share by which resident memory may grow after the warm-up."""


async def test_nothing_runs_dry_below_capacity_and_nothing_is_left_behind(
    tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
):
    seconds = float(pytestconfig.getoption("--soak-seconds") or 0)

    def tell(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    found = await soak(seconds, tmp_path, tell)
    tell(f"results: {found.write(BENCH / 'results')}")
    for outcome in (found.below, found.near):
        assert outcome["done"] > 0
        assert outcome.get("underruns", 0) == 0
        assert outcome.get("refused", 0) == 0
    assert found.above.get("refused", 0) > 0
    assert found.above.get("without_retry", 0) == 0
    for outcome in (*found.spoken.values(), found.heard):
        assert outcome.get("lost", 0) == 0
        assert not [name for name in outcome if name.startswith("error")]
    assert found.heard["texts"] > 0
    assert found.heard.get("invented", 0) == 0
    assert found.slots_left == 0
    assert found.memory_growth <= MEMORY_GROWTH


@asynccontextmanager
async def flat_memory(service: SpeechService) -> AsyncIterator[None]:
    """Fails where resident memory grew from the middle to the end of the block."""
    memory: list[int] = []

    async def watch() -> None:
        while True:
            memory.append(service.resident_bytes())
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
    tenth = max(1, len(memory) // 10)
    warm, end = statistics.mean(memory[4 * tenth : 5 * tenth]), statistics.mean(memory[-tenth:])
    assert end <= warm * (1 + MEMORY_GROWTH)


def hour(config: pytest.Config) -> float:
    """Seconds of audio: six times --soak-seconds."""
    return 6 * float(config.getoption("--soak-seconds") or 0)


async def test_an_hour_of_one_voice_leaves_memory_flat(tmp_path: Path, pytestconfig: pytest.Config):
    """As fast as it is spoken."""
    wanted = hour(pytestconfig)
    async with speech_service(tmp_path, "--max-stream-s", "7200") as service:
        short = (await speak(service, [" ".join(TEXTS)])).seconds
        rounds = int(wanted / short) + 1
        async with flat_memory(service):
            spoken = await speak(service, [f"{' '.join(TEXTS)} "] * rounds, keep=False)
        assert (spoken.error, spoken.finished) == ("", 1)
        assert spoken.seconds > 0.9 * wanted


async def test_an_hour_of_codes_each_way_leaves_memory_flat(
    tmp_path: Path, pytestconfig: pytest.Config
):
    """As fast as a small random codec goes: decoded, and what comes of it encoded again."""
    small_codec(tmp_path / "codec")
    flags = ("--codecs", f"small={tmp_path / 'codec'}", "--codec-slots", "1", "--codec-rungs", "1")
    count = int(hour(pytestconfig) * FRAME_RATE)
    codes = np.random.default_rng(1).integers(0, SIZE, (250, CODEBOOKS)).reshape(-1).tolist()
    flags = (*flags, "--codec-threads", "1", "--max-stream-s", "7200")
    async with speech_service(tmp_path, *flags) as service:
        frames = audio_pb2.CodeFrames(codes=codes, codebook_count=CODEBOOKS, frame_rate=FRAME_RATE)

        async def decoded() -> AsyncIterator[pb.DecodeCodesRequest]:
            yield pb.DecodeCodesRequest(config=pb.DecodeConfig())
            for _ in range(count // 250):
                yield pb.DecodeCodesRequest(codes=frames)

        async def encoded() -> AsyncIterator[pb.EncodeAudioRequest]:
            yield pb.EncodeAudioRequest(config=pb.EncodeConfig())
            for _ in range(count // 250):
                yield pb.EncodeAudioRequest(audio=bytes(2 * 250 * FRAME_SAMPLES))

        expected = count // 250 * 250
        async with flat_memory(service):
            last = await last_of(service.speech.DecodeCodes(decoded()))
            assert last.finished.sample_count == expected * FRAME_SAMPLES
        async with flat_memory(service):
            last = await last_of(service.speech.EncodeAudio(encoded()))
            assert last.finished.frame_count == expected


async def last_of(call: Any) -> Any:
    """The last message of a stream, the others read and forgotten."""
    last = None
    async with open_stream(call) as stream:
        async for message in messages(stream):
            last = message
    return last
