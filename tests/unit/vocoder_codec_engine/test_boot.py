"""Boot of the codec process: names, admission, measured rungs, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from antiphon_vocoder.codec_engine.admission import DoesNotFit, admit
from antiphon_vocoder.codec_engine.boot import boot, load_codecs
from antiphon_vocoder.codec_engine.device import HostStepDevice, open_device
from antiphon_vocoder.codec_messages import CodecEngineReady, Stage
from engine_bench import engine_config
from support.fake_codec import FakeCodec

GIB = 1 << 30


class Outbox:
    """Stands for the endpoint at boot."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


def booted(codec: FakeCodec, **config: Any) -> CodecEngineReady:
    outbox = Outbox()
    boot(outbox, engine_config(**config), lambda *_: codec)  # pyright: ignore[reportArgumentType]
    ready = outbox.sent[-1]
    assert isinstance(ready, CodecEngineReady)
    return ready


def test_slots_are_what_memory_holds_and_speed_allows() -> None:
    sizes = {"base_bytes": 2 * GIB, "stream_bytes": GIB // 2}
    fit = admit(wanted=0, memory_bytes=10 * GIB, keeps_up_with=999, **sizes)
    assert (fit.slots, fit.bound) == (16, "memory")
    fast = admit(wanted=0, memory_bytes=10 * GIB, keeps_up_with=7, **sizes)
    assert (fast.slots, fast.bound) == (7, "speed")
    slow = admit(wanted=0, memory_bytes=10 * GIB, keeps_up_with=0, **sizes)
    assert slow.slots == 1
    wanted = admit(wanted=12, memory_bytes=10 * GIB, keeps_up_with=1, **sizes)
    assert (wanted.slots, wanted.bound) == (12, "setting")


@pytest.mark.parametrize(("wanted", "short"), [(0, "short of 0.25 GiB"), (20, "short of 9.75 GiB")])
def test_what_does_not_fit_names_the_shortfall(wanted: int, short: str) -> None:
    with pytest.raises(DoesNotFit, match=short):
        admit(
            wanted=wanted,
            memory_bytes=2 * GIB + GIB // 4,
            base_bytes=2 * GIB,
            stream_bytes=GIB // 2,
            keeps_up_with=9,
        )


def test_boot_tells_what_is_served() -> None:
    ready = booted(FakeCodec(), codecs=["voice=somewhere"], slots=6)
    info = ready.codecs[0]
    assert (info.name, info.codebook_count, info.codebook_size) == ("voice", 4, 512)
    assert info.stages == [Stage.DECODE, Stage.ENCODE]
    assert info.hops == {Stage.DECODE: (1, 4), Stage.ENCODE: (1, 1)}
    assert info.cost[Stage.DECODE] > 0
    assert (ready.slots, ready.bound, ready.rungs) == (6, "setting", [1, 4, 16])
    # Three lengths of decoding and one of encoding, at each rung.
    assert ready.recorded == 12
    assert ready.stream_bytes == 24


def test_a_slow_codec_gets_fewer_slots_and_no_rung_that_is_too_slow() -> None:
    codec = FakeCodec()
    codec.row_seconds = 0.02
    ready = booted(codec, rungs=[1, 2, 4, 8, 16])
    # Encoding takes 20 ms a row for 80 ms of audio: three streams stay within four fifths.
    assert ready.bound == "speed"
    assert 2 <= ready.slots <= 3
    assert ready.rungs == [1, 2, 4][: len(ready.rungs)]


def test_too_little_memory_ends_the_boot() -> None:
    with pytest.raises(DoesNotFit, match="memory_gib gives"):
        booted(FakeCodec(), memory_bytes=1)


def test_two_codecs_of_one_name_need_names() -> None:
    device = HostStepDevice(0).device
    load = lambda *_: FakeCodec()  # noqa: E731
    with pytest.raises(ValueError, match="two codecs are called fake"):
        load_codecs(["a", "b"], device, "fp32", load)
    assert list(load_codecs(["a", "x=b"], device, "fp32", load)) == ["fake", "x"]
    paths: list[Path] = []

    def seen(path: Path, *_: object) -> FakeCodec:
        paths.append(path)
        return FakeCodec()

    load_codecs(["x=/a/b"], device, "fp32", seen)
    assert paths == [Path("/a/b")]


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="allowed: cpu, cuda"):
        open_device("meta", 1)
