"""Each codec against an implementation that is not ours, on whole clips."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from antiphon_vocoder.codec.contract import ABSENT, Codec
from safetensors.torch import load_file
from transformers import DacModel, EncodecModel, MimiModel
from unit.vocoder_codec import rvq_vae_reference as reference
from unit.vocoder_codec.small_codecs import CONTROL, RVQ_VAE, SILENCE

Get = Callable[[str], Codec]


def draw_codes(codec: Codec, frames: int, batch: int = 2, depth: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(frames)
    shape = (batch, depth or codec.spec.codebook_count, frames)
    return torch.randint(0, codec.spec.codebook_size, shape, generator=generator)


def draw_pcm(codec: Codec, frames: int, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(frames)
    return torch.randn(batch, frames * codec.spec.frame_samples, generator=generator) * 0.5


@torch.no_grad()
@pytest.mark.parametrize("frames", [1, 7, 60])
def test_mimi_equals_transformers(
    codecs: Get, checkpoint: Callable[[str], Path], frames: int
) -> None:
    codec = codecs("mimi")
    oracle = MimiModel.from_pretrained(checkpoint("mimi")).eval()
    codes, pcm = draw_codes(codec, frames), draw_pcm(codec, frames)
    want = oracle.decode(codes).audio_values[:, 0]
    scale = want.abs().max()
    assert (codec.decode(codes) - want).abs().max() / scale < 1e-5
    assert torch.equal(codec.encode(pcm), oracle.encode(pcm[:, None]).audio_codes)
    few = oracle.encode(pcm[:, None], num_quantizers=3).audio_codes
    assert torch.equal(codec.encode(pcm, codebooks=3), few)
    first = codes[:, :2]
    got, want = codec.decode(first), oracle.decode(first).audio_values[:, 0]
    assert (got - want).abs().max() / scale < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("frames", [1, 5, 7, 60])
def test_encodec_equals_transformers(
    codecs: Get, checkpoint: Callable[[str], Path], frames: int
) -> None:
    codec = codecs("encodec")
    oracle = EncodecModel.from_pretrained(checkpoint("encodec")).eval()
    codes, pcm = draw_codes(codec, frames), draw_pcm(codec, frames)
    for given in (codes, codes[:, :1]):
        want = oracle.decode(given[None], [None]).audio_values[:, 0]
        assert (codec.decode(given) - want).abs().max() < 1e-5
    for bandwidth, depth in ((1.5, 4), (0.375, 1)):
        want = oracle.encode(pcm[:, None], bandwidth=bandwidth).audio_codes[0]
        assert want.shape[1] == depth
        assert torch.equal(codec.encode(pcm, codebooks=depth), want)


@torch.no_grad()
@pytest.mark.parametrize("frames", [1, 9, 70])
def test_dac_equals_transformers(
    codecs: Get, checkpoint: Callable[[str], Path], frames: int
) -> None:
    """At both ends too: shorter and longer than what its layers see, past a whole step."""
    codec = codecs("dac")
    oracle = DacModel.from_pretrained(checkpoint("dac")).eval()
    codes, pcm = draw_codes(codec, frames), draw_pcm(codec, frames)
    for given in (codes, codes[:, :2]):
        want = oracle.decode(audio_codes=given).audio_values
        got = codec.decode(given)
        # Its layer of an odd stride gives one sample less than the stride asks for.
        assert (got.shape[1], want.shape[1]) == (frames * 24, frames * 24 - 1)
        assert (got[:, :-1] - want).abs().max() < 1e-5
        assert not got[:, -1].any()
    want = oracle.encode(pcm[:, None]).audio_codes
    assert all(len(level.unique()) > 1 for level in want.transpose(0, 1)) or frames == 1
    assert torch.equal(codec.encode(pcm), want)
    few = oracle.encode(pcm[:, None], n_quantizers=3).audio_codes
    assert torch.equal(codec.encode(pcm, codebooks=3), few)


@pytest.mark.parametrize("frames", [1, 2, 9, 40])
def test_rvq_vae_equals_the_specification_in_float64(
    codecs: Get, checkpoint: Callable[[str], Path], frames: int
) -> None:
    codec = codecs("rvq_vae")
    tensors = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in load_file(checkpoint("rvq_vae") / "model.safetensors").items()
    }
    codes, pcm = draw_codes(codec, frames), draw_pcm(codec, frames)
    got, encoded = codec.decode(codes), codec.encode(pcm)
    for row in range(2):
        want = reference.decode(tensors, codes[row], RVQ_VAE)
        assert got[row].shape == want.shape
        assert np.abs(got[row].numpy() - want).max() < 1e-5
        want_codes = reference.encode(tensors, pcm[row].double().numpy(), RVQ_VAE)
        assert torch.equal(encoded[row], want_codes)


def test_control_codes_sound_as_the_silence_frame(codecs: Get) -> None:
    codec = codecs("rvq_vae")
    assert codec.spec.control_codes == frozenset(CONTROL)
    assert [codec.spec.accepts(code) for code in (31, 32, 33, 34, 35, 36)] == [
        *(True, True, True),
        *(False, True, False),
    ]
    codes = draw_codes(codec, 6)
    marked, silent = codes.clone(), codes.clone()
    for frame, control in ((1, CONTROL[0]), (3, CONTROL[2])):
        marked[:, :, frame] = control
        silent[:, :, frame] = torch.tensor(SILENCE)
    assert torch.equal(codec.decode(marked), codec.decode(silent))
    assert torch.equal(codec.decode(marked[:, :2]), codec.decode(silent[:, :2]))


@pytest.mark.parametrize("kind", ["mimi", "encodec", "rvq_vae", "dac"])
def test_absent_codebooks_add_nothing(codecs: Get, kind: str) -> None:
    codec = codecs(kind)
    codes = draw_codes(codec, 9)
    padded = codes.clone()
    padded[:, 2:] = ABSENT
    want = codec.decode(codes[:, :2])
    assert (codec.decode(padded) - want).abs().max() <= 1e-5 * want.abs().max().clamp(min=1)


@pytest.mark.parametrize("kind", ["mimi", "encodec", "rvq_vae", "dac"])
def test_the_tail_is_padded_with_zeros_to_a_frame(codecs: Get, kind: str) -> None:
    codec = codecs(kind)
    pcm = draw_pcm(codec, 9)[:, :-5]
    codes = codec.encode(pcm)
    assert codes.shape == (2, codec.spec.codebook_count, 9)
    assert torch.equal(codes, codec.encode(torch.nn.functional.pad(pcm, (0, 5))))
    assert codec.decode(codes).shape == (2, 9 * codec.spec.frame_samples)
    assert codec.encode(pcm[:, :0]).shape == (2, codec.spec.codebook_count, 0)
    assert codec.decode(codes[:, :, :0]).shape == (2, 0)


def test_equal_distances_take_the_lowest_code() -> None:
    from antiphon_vocoder.codec.products import Products
    from antiphon_vocoder.codec.quantizer import ResidualQuantizer

    book = torch.tensor([[9.0, 0.0], [1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    quantizer = ResidualQuantizer([book, book], Products(torch.device("cpu"), "fp32"))
    codes = quantizer.encode(torch.tensor([[[1.0, 0.0], [0.0, 5.0]]]), 2)
    assert codes[0, 0].tolist() == [1, 1]


def test_equal_angles_take_the_lowest_code() -> None:
    from antiphon_vocoder.codec.cosine import CosineCodebook, CosineQuantizer
    from antiphon_vocoder.codec.products import Products

    book = CosineCodebook(
        entries=torch.tensor([[0.0, 1.0], [1.0, 0.0], [9.0, 0.0], [-1.0, 0.0]]),
        down=torch.eye(2),
        down_bias=torch.zeros(2),
        up=torch.eye(2),
        up_bias=torch.tensor([0.5, 0.0]),
    )
    quantizer = CosineQuantizer([book, book], Products(torch.device("cpu"), "fp32"))
    codes = quantizer.encode(torch.tensor([[[8.0, 0.5], [0.1, 5.0]]]), 2)
    assert codes[0].tolist() == [[1, 0], [1, 0]]
    assert quantizer.decode(codes)[0].tolist() == [[3.0, 0.0], [1.0, 2.0]]
