"""The real tokenizer of the default model, and a tiny SentencePiece-like one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from antiphon_llm.checkpoint import resolve
from antiphon_llm.front import tokenizer
from antiphon_llm.front.tokenizer import Tokenizer
from antiphon_nn.gguf_file import GgufFile

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def smollm_metadata(model_cache: Path) -> dict:
    return GgufFile(resolve("smollm2-135m-instruct", model_cache).path).metadata


@pytest.fixture(scope="session")
def smollm(smollm_metadata: dict) -> Tokenizer:
    return tokenizer.from_gguf(smollm_metadata)


@pytest.fixture(scope="session")
def gemma(model_cache: Path) -> Tokenizer:
    return tokenizer.from_gguf(GgufFile(resolve("gemma-3-270m", model_cache).path).metadata)


@pytest.fixture(scope="session")
def llama_like() -> Tokenizer:
    """SentencePiece with a prefix space, byte fallback and two control tokens."""
    pieces = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "▁abc", "bc", "s", ">", "<", "/", "</"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 259 + [-float(place) for place in range(len(pieces))]
    return tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": True,
        }
    )
