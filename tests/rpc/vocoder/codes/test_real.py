"""A small random Mimi in the real codec process, over real sockets, against transformers."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from antiphon_core.errors import FailedPrecondition, Unavailable
from antiphon_core.rpc.streams import open_stream
from antiphon_vocoder.codec_engine.__main__ import serve
from codes_bench import serving, speech_codes, speech_config
from support.speech_model import CODEBOOKS, SIZE, small_codec
from support.speech_model import FRAME_SAMPLES as FRAME
from transformers import MimiModel


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mimi")


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> MimiModel:
    return small_codec(checkpoint)


async def test_a_real_codec_in_its_process(oracle: MimiModel, checkpoint: Path) -> None:
    """One process for all of it: a start costs seconds."""
    settings = {
        "codecs": [f"small={checkpoint}"],
        "codec_slots": 8,
        "codec_rungs": (8,),
        "codec_threads": 1,
    }
    async with serving(None, **settings) as bench:
        codes = np.random.default_rng(1).integers(0, SIZE, (40, CODEBOOKS), dtype=np.int32)
        with torch.no_grad():
            expected = oracle.decode(torch.from_numpy(codes.T[None].astype(np.int64)))[0][0, 0]
        wanted = expected.numpy()
        alone = await bench.decode(codes)
        assert alone.ready.model == "small"
        assert alone.finished.sample_count == 40 * FRAME == len(alone.samples)
        limited = np.clip(wanted * 32767, -32768, 32767)
        assert np.abs(wanted).max() > 0.01
        np.testing.assert_allclose(alone.samples, limited, atol=1.5)

        singles = np.split(codes, 40)
        company = await asyncio.gather(
            bench.speak(codes, pieces=singles),
            *(bench.speak(np.roll(codes, shift, axis=0)) for shift in range(1, 8)),
        )
        assert company[0].data == alone.data
        assert len({heard.data for heard in company}) == 8

        audio = np.random.default_rng(2).uniform(-0.3, 0.3, 25 * FRAME + 700)
        pcm = np.rint(audio * 32767).astype("<i2")
        padded = np.pad(pcm, (0, 1220)).astype(np.float32) / 32768
        with torch.no_grad():
            whole = oracle.encode(torch.from_numpy(padded)[None, None], num_quantizers=CODEBOOKS)
        parts = [pcm.tobytes()[start : start + 5001] for start in range(0, 2 * len(pcm), 5001)]
        encoded = await bench.encode(parts)
        assert encoded.finished.sample_count == len(pcm)
        assert encoded.finished.frame_count == 26
        assert whole.audio_codes is not None
        agree = whole.audio_codes[0].numpy() == np.array(encoded.codes).reshape(-1, CODEBOOKS).T
        assert agree.mean() > 0.99

        await _death_and_return(bench, codes, alone.data)


async def _death_and_return(bench, codes: np.ndarray, expected: bytes) -> None:
    """The process dies under a stream: a typed end, and the next stream is served."""
    with pytest.raises(Unavailable) as error:
        async with open_stream(bench.stub.StreamSpeech()) as call:
            await call.write(speech_config())
            await call.write(speech_codes(codes[:5]))
            await call.read()
            os.kill(bench.runtime.codec.engine.pid, signal.SIGKILL)
            while await call.read():
                pass
    assert error.value.reason == "WORKER_DIED"
    assert error.value.retry_after is not None
    assert (await bench.decode(codes)).data == expected
    assert bench.runtime.codec.restarts == 1
    await bench.until_idle()


async def test_a_wrong_checkpoint_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "unknown"}')
    with pytest.raises(FailedPrecondition, match=r"the codec process cannot boot: .*safetensors"):
        async with serving(serve, codecs=[str(tmp_path)]):
            pass
