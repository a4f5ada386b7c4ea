"""The page's arithmetic, run in node: resampling, playback and conversions."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's modules where node takes them for modules."""
    folder = tmp_path_factory.mktemp("page")
    source = Path(str(files("antiphon_gateway") / "web" / "js"))
    shutil.copytree(source, folder / "js")
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def run(folder: Path, script: str) -> object:
    """What the script prints, as JSON."""
    assert NODE
    (folder / "check.js").write_text(script)
    done = subprocess.run(
        [NODE, "check.js"], cwd=folder, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_resampling_is_the_same_whatever_the_cuts_and_keeps_a_tone(modules: Path) -> None:
    result = run(
        modules,
        """
        import { Resampler } from "./js/resampler.js";
        const tone = (rate, hz) =>
          Float32Array.from({ length: rate }, (_, i) => Math.sin((2 * Math.PI * hz * i) / rate));
        const whole = (from, to, hz) => [...new Resampler(from, to).push(tone(from, hz))];
        const cut = new Resampler(48000, 24000);
        const pieces = [];
        const input = tone(48000, 1000);
        for (let i = 0; i < input.length; i += 128) {
          pieces.push(...cut.push(input.slice(i, i + 128)));
        }
        const power = (x) => Math.sqrt(x.reduce((s, v) => s + v * v, 0) / x.length);
        const once = whole(48000, 24000, 1000);
        const difference = Math.max(...once.map((v, i) => Math.abs(v - pieces[i])));
        console.log(JSON.stringify({
          length: once.length,
          difference,
          kept: power(once.slice(100, -100)),
          alias: power(whole(48000, 24000, 17000).slice(100, -100)),
          up: power(whole(24000, 44100, 3000).slice(100, -100)),
        }));
        """,
    )
    assert isinstance(result, dict)
    assert abs(result["length"] - 24_000) < 50
    assert result["difference"] < 1e-6
    assert result["kept"] == pytest.approx(0.7071, rel=0.01)
    assert result["up"] == pytest.approx(0.7071, rel=0.01)
    assert result["alias"] < 0.004, "17 kHz must not fold down"


def test_playback_starts_late_grows_on_underrun_and_tells_what_was_heard(modules: Path) -> None:
    result = run(
        modules,
        """
        import { PlaybackBuffer } from "./js/playback.js";
        const buffer = new PlaybackBuffer(1000, 0.1);
        const block = new Float32Array(50);
        const log = [];
        buffer.push("a", new Float32Array(80).fill(1));
        log.push(buffer.pull(block));
        buffer.push("a", new Float32Array(40).fill(1));
        log.push(buffer.pull(block), buffer.pull(block), buffer.pull(block));
        buffer.push("a", new Float32Array(140).fill(1));
        log.push(buffer.pull(block));
        buffer.end("a");
        log.push(buffer.pull(block));
        const interrupted = buffer.flush();
        buffer.push("b", new Float32Array(20).fill(1));
        buffer.end("b");
        log.push(buffer.pull(block));
        const heard = buffer.flush();
        console.log(JSON.stringify({ log, interrupted, heard, underruns: buffer.underruns }));
        """,
    )
    assert isinstance(result, dict)
    assert result["log"] == [None, "started", None, "underrun", None, "started", "drained"]
    assert result["interrupted"] == {"item": "a", "playedMs": 170, "unheard": True}
    assert result["heard"] == {"item": "b", "playedMs": 20, "unheard": False}
    assert result["underruns"] == 1


def test_samples_survive_the_wire(modules: Path) -> None:
    result = run(
        modules,
        """
        import { fromBase64, toBase64, toInt16 } from "./js/pcm.js";
        const samples = Float32Array.from([0, 0.5, -0.5, 1, -1, 2, -2]);
        console.log(JSON.stringify([...fromBase64(toBase64(toInt16(samples).buffer))]));
        """,
    )
    assert result == pytest.approx([0, 0.5, -0.5, 1, -1, 1, -1], abs=1e-4)
