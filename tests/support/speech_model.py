"""Small random checkpoints: a language model that writes words and speech codes, and its codec.

The model is a Llama whose head follows its input token alone: each kind of token (a word, the
begin of speech, each codebook) allows the next kinds, and random weights say which id of them. So
its codes are random, its layout is a speech model's.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, MimiConfig, MimiModel

WORDS = ["red", "blue", "sky", "grass", "green", "sun"]
END, START, STOP, FIRST_WORD, FIRST_CODE = 0, 1, 2, 3, 16
CODEBOOKS, SIZE = 4, 64
VOCABULARY = FIRST_CODE + CODEBOOKS * SIZE
FRAME_RATE, FRAME_SAMPLES, SAMPLE_RATE = 12.5, 1920, 24_000
OUTPUT = {
    "codec": "small",
    "frame_rate": FRAME_RATE,
    "layout": "interleaved",
    "codebook_size": SIZE,
    "first_code_ids": [FIRST_CODE + book * SIZE for book in range(CODEBOOKS)],
    "start_id": START,
    "end_id": STOP,
}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"

_KINDS = {
    "word": range(FIRST_WORD, FIRST_WORD + len(WORDS)),
    "start": [START],
    **{
        f"book{book}": range(FIRST_CODE + book * SIZE, FIRST_CODE + (book + 1) * SIZE)
        for book in range(CODEBOOKS)
    },
}
_ALLOWED = 30.0


def speech_model(path: Path) -> Path:
    """Saves a model with tokenizer and template; it speaks until it is cut."""
    torch.manual_seed(5)
    kinds = list(_KINDS)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=20_000,
        eos_token_id=END, pad_token_id=END, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding.zero_()
        head.normal_(std=0.05)
        for place, kind in enumerate(kinds):
            embedding[list(_KINDS[kind]), place] = 1.0
            # The norm makes the one component sqrt(hidden_size).
            for following in _following(kind):
                head[list(_KINDS[following]), place] += _ALLOWED / 32**0.5
    model.save_pretrained(path)
    config_file = path / "config.json"
    document = json.loads(config_file.read_text()) | {"antiphon_output": OUTPUT}
    config_file.write_text(json.dumps(document))
    _tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


def small_codec(path: Path) -> MimiModel:
    """Saves a random Mimi of the same codes, whose every layer matters, and gives the model."""
    torch.manual_seed(3)
    config = MimiConfig(
        num_filters=8, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, intermediate_size=96, num_quantizers=CODEBOOKS,
        codebook_size=SIZE, codebook_dim=32, vector_quantization_hidden_dimension=32,
        upsample_groups=64, sliding_window=32,
    )  # fmt: skip
    model = MimiModel(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_buffers():
            if name.endswith("embed_sum"):
                tensor.normal_()
            elif name.endswith(("cluster_usage", "initialized")):
                tensor.fill_(1.0)
        for name, weight in model.named_parameters():
            if name.endswith("_layer_scale.scale"):
                weight.fill_(0.3)
    model.save_pretrained(path)
    return model


def _following(kind: str) -> tuple[str, ...]:
    if kind == "word":
        return ("word", "start")
    if kind == "start":
        return ("book0",)
    return (f"book{(int(kind[4:]) + 1) % CODEBOOKS}",)


def _tokenizer() -> Tokenizer:
    words = {"<end>": END, "<speech>": START, "</speech>": STOP, "<unk>": 15}
    words |= {f"\u0120{word}": FIRST_WORD + place for place, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = ByteLevel()
    made.add_special_tokens(["<end>", "<speech>", "</speech>"])
    return made
