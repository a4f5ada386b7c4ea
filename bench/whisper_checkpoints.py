"""Whisper checkpoints in the transformers layout, for benches and tests: small random ones, and the
packaged CTranslate2 model with its own weights.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from antiphon_vocoder.recognition.whisper.opening import packaged_model
from safetensors.torch import save_file
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

# The packaged tokenizer is that of the English models.
END, START, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = 50256, 50257, 50360, 50361, 50362
VOCABULARY = 51864
_GAIN = 6.0


def _generation(suppressed: list[int], **further: Any) -> GenerationConfig:
    return GenerationConfig(
        is_multilingual=False,
        no_timestamps_token_id=NO_TIMESTAMPS,
        prev_sot_token_id=PREVIOUS,
        decoder_start_token_id=START,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        suppress_tokens=suppressed,
        begin_suppress_tokens=[220, END],
        max_initial_timestamp_index=50,
        max_length=448,
        **further,
    )


def _config(**sizes: Any) -> WhisperConfig:
    return WhisperConfig(
        vocab_size=VOCABULARY, eos_token_id=END, decoder_start_token_id=START, **sizes
    )


def _finish(directory: Path, generation: GenerationConfig, bands: int) -> Path:
    generation.save_pretrained(directory)
    WhisperFeatureExtractor(feature_size=bands).save_pretrained(directory)
    shutil.copy(packaged_model() / "tokenizer.json", directory)
    return directory


def random_checkpoint(
    directory: Path,
    seed: int = 0,
    *,
    end_like: tuple[int, float] | None = None,
) -> Path:
    """A small model with weights large enough for texts that depend on what is heard.

    ``end_like`` is a token and a factor that make the row of the end's token, which is zero
    otherwise: some texts then end early.
    """
    torch.manual_seed(seed)
    config = _config(
        d_model=64,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=96,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=128,
    )
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed_positions" not in name:
                parameter.mul_(_GAIN)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
        if end_like is not None:
            token, factor = end_like
            rows = model.model.decoder.embed_tokens.weight
            rows[END] = factor * rows[token]
    model.save_pretrained(directory)
    return _finish(directory, _generation([1, 2, 7]), 80)


def drawn_checkpoint(directory: Path, device: torch.device, **sizes: Any) -> Path:
    """A model of these sizes in fp16, drawn on the device, whose texts never end.

    Args:
        directory: takes the files.
        device: where the weights are drawn.
        sizes: keys of config.json.
    """
    config = _config(**sizes)
    torch.manual_seed(0)
    with device:
        model = WhisperForConditionalGeneration(config).half()
    model.save_pretrained(directory)
    return _finish(directory, _generation([END]), config.num_mel_bins)


def converted_checkpoint(directory: Path) -> Path:
    """The packaged CTranslate2 model, with the same fp16 weights, as transformers writes it."""
    source = packaged_model()
    with (source / "model.bin").open("rb") as file:
        tensors = dict(_ctranslate_tensors(file))
    weights = dict(_renamed(tensors))
    layers = {
        side: len({n.split(".")[3] for n in weights if n.startswith(f"model.{side}.layers.")})
        for side in ("encoder", "decoder")
    }
    width = weights["model.encoder.conv1.weight"].shape[0]
    bands = weights["model.encoder.conv1.weight"].shape[1]
    inner = weights["model.encoder.layers.0.fc1.weight"].shape[0]
    heads = int(tensors["encoder/num_heads"])
    config = _config(
        d_model=width,
        num_mel_bins=bands,
        encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"],
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
    )
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((source / "config.json").read_text())
    generation = _generation(
        described["suppress_ids"], alignment_heads=described["alignment_heads"]
    )
    return _finish(directory, generation, bands)


_DTYPES = {0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16}


def _ctranslate_tensors(file: BinaryIO) -> Iterator[tuple[str, torch.Tensor]]:
    """Variables of a model.bin, by name."""

    def number(kind: str) -> int:
        return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]

    def text() -> str:
        return file.read(number("H")).rstrip(b"\0").decode()

    version, _, _ = number("I"), text(), number("I")
    assert version == 6
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        dtype = _DTYPES[number("B")]
        data = bytearray(file.read(number("I")))
        yield name, torch.frombuffer(data, dtype=dtype).reshape(shape).clone()


_PARTS = {
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
    "ffn/layer_norm": ("final_layer_norm",),
}
_TOP = {
    "conv1": "conv1",
    "conv2": "conv2",
    "layer_norm": "layer_norm",
    "embeddings": "embed_tokens",
    "position_encodings": "embed_positions",
}
_KINDS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}


def _renamed(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for path, tensor in tensors.items():
        side, _, rest = path.partition("/")
        part, _, kind = rest.rpartition("/")
        kind = _KINDS.get(kind, kind)
        if part in _TOP:
            yield f"model.{side}.{_TOP[part]}.{kind}", tensor
        elif part.startswith("layer_"):
            layer, _, inside = part.removeprefix("layer_").partition("/")
            names = _PARTS[inside]
            for name, piece in zip(names, tensor.chunk(len(names)), strict=True):
                if not (name.endswith("k_proj") and kind == "bias"):
                    yield f"model.{side}.layers.{layer}.{name}.{kind}", piece.contiguous()
