"""EnCodec of overlapping chunks: whole clips equal transformers', streams are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_vocoder.codec.contract import ABSENT
from antiphon_vocoder.codec.encodec_chunked import ChunkedEncodec
from antiphon_vocoder.codec_engine.boot import load_codecs
from transformers import EncodecModel

CHUNK, STRIDE, FRAMES = 480, 456, 20


@pytest.fixture
def codec(codecs: Callable[[str], Any]) -> ChunkedEncodec:
    return codecs("encodec_chunked")


@torch.no_grad()
@pytest.mark.parametrize("samples", [1, STRIDE, STRIDE + 1, 3 * STRIDE + 100])
def test_it_equals_transformers(
    codec: ChunkedEncodec, checkpoint: Callable[[str], Path], samples: int
) -> None:
    oracle: Any = EncodecModel.from_pretrained(checkpoint("encodec_chunked")).eval()
    chunks = -(-samples // STRIDE)
    draw = torch.Generator().manual_seed(samples)
    pcm = torch.randn(2, 2, samples, generator=draw) * torch.tensor([0.02, 0.7])[:, None, None]
    # As its feature extractor pads a clip. It then has one chunk more, of the last overlap
    # alone, which the chunk before it has whole.
    padded = torch.nn.functional.pad(pcm, (0, (chunks - 1) * STRIDE + CHUNK - samples))
    for bandwidth, depth in ((2.0, 4), (0.5, 1)):
        want = oracle.encode(padded, bandwidth=bandwidth)
        books, loudness = want.audio_codes[:chunks], want.audio_scales[:chunks]
        codes, scales = codec.encode_scaled(pcm, depth)
        assert codes.shape == (2, depth, chunks * FRAMES)
        assert torch.equal(codes, torch.cat(list(books), dim=2))
        assert (scales - torch.cat(loudness, dim=1)).abs().max() < 1e-6
        heard = oracle.decode(books, loudness).audio_values
        got = codec.decode(codes, scales)
        assert got.shape == heard.shape == padded.shape
        assert (got - heard).abs().max() < 1e-5
        assert torch.equal(codec.encode(pcm, depth), codes)


@torch.no_grad()
@pytest.mark.parametrize("left", [1, 7, FRAMES - 1])
def test_a_shorter_last_chunk_equals_transformers(
    codec: ChunkedEncodec, checkpoint: Callable[[str], Path], left: int
) -> None:
    oracle: Any = EncodecModel.from_pretrained(checkpoint("encodec_chunked")).eval()
    draw = torch.Generator().manual_seed(left)
    codes = torch.randint(0, 32, (1, 4, FRAMES + left), generator=draw)
    scales = torch.tensor([[0.5, 2.0]])
    frames = torch.nn.functional.pad(codes, (0, FRAMES - left)).unflatten(2, (2, FRAMES))
    want = oracle.decode(
        frames.permute(2, 0, 1, 3), list(scales.t()[:, None]), last_frame_pad_length=FRAMES - left
    ).audio_values
    got = codec.decode(codes, scales)
    assert got.shape == want.shape == (1, 2, STRIDE + left * 24)
    assert (got - want).abs().max() < 1e-5


def test_scales_and_codebooks_are_optional(codec: ChunkedEncodec) -> None:
    codes = torch.arange(4 * 45).view(1, 4, 45) % 32
    plain = codec.decode(codes)
    assert torch.equal(plain, codec.decode(codes, torch.ones(1, 3)))
    assert (plain * 2 - codec.decode(codes, torch.full((1, 3), 2.0))).abs().max() < 1e-5
    absent = codes.clone()
    absent[:, 2:] = ABSENT
    assert (codec.decode(absent) - codec.decode(codes[:, :2])).abs().max() < 1e-5
    assert codec.decode(codes[..., :0]).shape == (1, 2, 0)
    assert codec.encode(torch.zeros(3, 2, 0)).shape == (3, 4, 0)
    with pytest.raises(
        ValueError, match=r"scales are \(1, 2\), 45 frames of 1 clips need \(1, 3\)"
    ):
        codec.decode(codes, torch.ones(1, 2))
    with pytest.raises(ValueError, match="codebooks is 5"):
        codec.encode(torch.zeros(1, 2, 9), codebooks=5)


def test_silence_has_a_scale_and_finite_samples(codec: ChunkedEncodec) -> None:
    codes, scales = codec.encode_scaled(torch.zeros(1, 2, CHUNK))
    assert scales.max() < 1e-7
    assert codec.decode(codes, scales).abs().max() < 1e-4


def test_streams_are_refused(codec: ChunkedEncodec, tmp_path: Path) -> None:
    assert (codec.spec.streams_decode, codec.spec.streams_encode) == (False, False)
    for state in (codec.decoder_state, codec.encoder_state):
        with pytest.raises(ValueError, match="whole chunks and cannot be streamed"):
            state(1, 1)
    with pytest.raises(ValueError, match="codec encodec cannot be streamed: 2 channels"):
        load_codecs([str(tmp_path)], torch.device("cpu"), "fp32", lambda *_: codec)
