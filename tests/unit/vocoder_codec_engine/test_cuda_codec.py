"""The codec process's steps on a CUDA device: recorded as graphs, they equal plain ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from antiphon_vocoder.codec.contract import Codec
from antiphon_vocoder.codec_engine.device import CudaStepDevice, open_device
from antiphon_vocoder.codec_messages import Stage
from engine_bench import Bench, pieces

from bench.random_codec import random_mimi

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SMALL: dict[str, Any] = {
    "num_filters": 16,
    "hidden_size": 128,
    "num_quantizers": 8,
    "codebook_size": 256,
    "codebook_dim": 64,
    "vector_quantization_hidden_dimension": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "sliding_window": 32,
}
FRAME = 1920


@pytest.fixture(scope="module")
def device() -> CudaStepDevice:
    found = open_device("cuda", 0)
    assert isinstance(found, CudaStepDevice)
    return found


@pytest.fixture(scope="module")
def codec(device: CudaStepDevice) -> Codec:
    return random_mimi(device.device, **SMALL)


def codes_of(seed: int, frames: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, 8), dtype=np.int32)


def test_graphs_equal_eager_steps_bit_for_bit(device: CudaStepDevice, codec: Codec) -> None:
    graphs = Bench(codec, slots=16, rungs=(1, 16), device=device)
    eager = Bench(codec, slots=16, rungs=(1, 16), device=device, record=False)
    for seed in range(3):
        codes = codes_of(seed, 60)
        assert graphs.speak(seed, codes).tobytes() == eager.speak(seed, codes).tobytes()
    assert graphs.runner.graph_misses == 0
    assert eager.runner.graph_misses > 0
    audio = np.random.default_rng(1).uniform(-0.3, 0.3, 20 * FRAME).astype(np.float32)
    encoded = []
    for bench in (graphs, eager):
        key = bench.open(5, stage=Stage.ENCODE, codebooks=8)
        bench.push(key, audio)
        bench.flush(key)
        bench.turns()
        encoded.append(bench.encoded(key))
    np.testing.assert_array_equal(*encoded)


def test_the_whole_is_what_the_codec_decodes_at_once(device: CudaStepDevice, codec: Codec) -> None:
    bench = Bench(codec, slots=4, rungs=(4,), device=device)
    codes = codes_of(9, 50)
    streamed = bench.speak(0, codes, list(range(0, 50, 3)))
    whole = codec.decode(torch.from_numpy(codes.T[None].astype(np.int64)).to(device.device))
    expected = whole[0].float().cpu().numpy()
    # These random weights give samples far above 1: what counts is the error beside them.
    error = np.sqrt(np.mean((streamed - expected) ** 2) / np.mean(expected**2))
    assert error < 1e-4


@pytest.mark.parametrize("company", [1, 8, 32])
def test_samples_do_not_depend_on_company_or_slot(
    device: CudaStepDevice, codec: Codec, company: int
) -> None:
    codes = codes_of(7, 40)
    expected = Bench(codec, slots=32, rungs=(32,), device=device).speak(5, codes).tobytes()
    bench = Bench(codec, slots=32, rungs=(32,), device=device)
    for state in bench.runner.states.values():
        for tensor in state.tensors.values():
            if tensor.is_floating_point():
                tensor[company:].fill_(torch.nan)
    slots = range(company - 1)
    spoken = {bench.open(slot, codebooks=8): codes_of(100 + slot, 40) for slot in slots}
    spoken[bench.open(31, codebooks=8)] = codes
    generator = random.Random(company)
    waiting = {key: pieces(40, [generator.randint(0, 40) for _ in range(4)]) for key in spoken}
    while any(waiting.values()):
        key = generator.choice([key for key, left in waiting.items() if left])
        start, stop = waiting[key].pop(0)
        bench.push(key, spoken[key][start:stop])
        bench.turns(generator.randint(0, 2))
    for key in spoken:
        bench.flush(key)
    bench.turns()
    assert bench.heard((31, 1)).tobytes() == expected
    assert bench.failed == []
    assert bench.runner.graph_misses == 0


def test_device_memory_is_flat_in_the_length_of_a_stream(
    device: CudaStepDevice, codec: Codec
) -> None:
    bench = Bench(codec, slots=4, rungs=(4,), device=device)
    bench.speak(0, codes_of(1, 100))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    key = bench.open(1, codebooks=8)
    for start in range(0, 4000, 100):
        bench.push(key, codes_of(start, 100))
        bench.turns()
        bench.delivered(key, start + 100)
        bench.samples[key].clear()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before * 1.01 + (1 << 20)
