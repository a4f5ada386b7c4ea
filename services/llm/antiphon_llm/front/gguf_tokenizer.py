"""Builds a fast tokenizer from the metadata of a GGUF file.

Two kinds are known: ``gpt2`` (byte-level BPE with a named pre-tokeniser) and ``llama``
(SentencePiece BPE, whose merges follow from the piece scores).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE

from antiphon_llm.front.errors import TokenizerError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of ``tokenizer.ggml.token_type``."""

_HIDDEN = (CONTROL, UNKNOWN)

SPACE = "\u2581"
"""SentencePiece's visible space."""

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _PreTokenizer:
    """How a text is cut before the byte level."""

    pattern: str
    single_digits: bool = False
    compose: bool = False
    """Whether the text is brought to Unicode's composed form first."""
    whole_words: bool = False
    """Whether a piece that is a token as a whole is taken without looking at merges."""


_GPT2 = _PreTokenizer(_GPT2_SPLIT)
_SINGLE_DIGITS = _PreTokenizer(_GPT2_SPLIT, single_digits=True)
_LLAMA3 = _PreTokenizer(_LLAMA3_SPLIT, whole_words=True)
_QWEN2 = _PreTokenizer(_QWEN2_SPLIT, compose=True)
_GPT4O = _PreTokenizer(_GPT4O_SPLIT, whole_words=True)

_PRE_TOKENIZERS: Mapping[str, _PreTokenizer] = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "llama3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _PreTokenizer(_LLAMA3_SPLIT),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "tekken": _PreTokenizer(_TEKKEN_SPLIT, whole_words=True),
}
"""By the file's ``tokenizer.ggml.pre``."""


def build(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes.

    Args:
        metadata: the file's metadata by key.

    Raises:
        TokenizerError: no tokenizer inside, or one of an unknown kind; names what is known.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise TokenizerError("the GGUF file has no tokenizer (tokenizer.ggml.model is absent)")
    tokens = [str(token) for token in metadata.get("tokenizer.ggml.tokens", ())]
    if not tokens:
        raise TokenizerError("the GGUF file's tokenizer has no tokens (tokenizer.ggml.tokens)")
    kinds = [int(number) for number in metadata.get("tokenizer.ggml.token_type", ())]
    if kinds and len(kinds) != len(tokens):
        raise TokenizerError(
            f"tokenizer.ggml.token_type has {len(kinds)} items for {len(tokens)} tokens"
        )
    kinds = kinds or [NORMAL] * len(tokens)
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer = _sentence_piece(metadata, tokens, kinds)
    else:
        raise TokenizerError(
            f"tokenizer.ggml.model is {kind!r}; supported are gpt2 (byte-level BPE) and "
            "llama (SentencePiece)"
        )
    _add_tokens(tokenizer, tokens, kinds)
    post_processor = _post_processor(metadata, tokens, default_bos=kind == "llama")
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    kind = _PRE_TOKENIZERS.get(pre)
    if kind is None:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {pre!r}; supported are {', '.join(sorted(_PRE_TOKENIZERS))}"
        )
    merges = [_pair(str(line)) for line in metadata.get("tokenizer.ggml.merges", ())]
    if not merges:
        raise TokenizerError("the GGUF file's gpt2 tokenizer has no merges")
    tokenizer = Tokenizer(
        BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=kind.whole_words,
        )
    )
    if kind.compose:
        tokenizer.normalizer = normalizers.NFC()
    digits = [pre_tokenizers.Digits(individual_digits=True)] if kind.single_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *digits,
            pre_tokenizers.Split(Regex(kind.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(line: str) -> tuple[str, str]:
    """Both halves of a merge; the separator is the first space that has text on both sides."""
    left, _, right = line[1:].partition(" ")
    return line[:1] + left, right


def _sentence_piece(
    metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]
) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise TokenizerError(
            "the GGUF file's llama tokenizer needs one score per token (tokenizer.ggml.scores)"
        )
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_merges_from_scores(tokens, kinds, [float(score) for score in scores]),
            unk_token=None if unknown is None else tokens[int(unknown)],
            fuse_unk=unknown is not None,
            byte_fallback=sum(kind == BYTE for kind in kinds) == 256,
        )
    )
    to_visible = normalizers.Replace(" ", SPACE)
    decoding = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), to_visible])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = to_visible
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _merges_from_scores(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best resulting score first.

    SentencePiece joins the neighbours whose union scores best; a BPE that ranks each pair by
    the score of its union does the same. Among equals the longest left half goes first.
    """
    pieces = {
        token for token, kind in zip(tokens, kinds, strict=True) if kind in (NORMAL, USER_DEFINED)
    }
    order = [index for index, kind in enumerate(kinds) if kind == NORMAL]
    order.sort(key=lambda index: -scores[index])
    found: list[tuple[str, str]] = []
    for index in order:
        token = tokens[index]
        for cut in range(len(token) - 1, 0, -1):
            left = token[:cut]
            if left in pieces:
                right = token[cut:]
                if right in pieces:
                    found.append((left, right))
    return found


def _add_tokens(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Control tokens and user-defined pieces are matched in the text before anything else."""
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind in _HIDDEN]
    visible = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control if token]
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in visible if token]
    )


def _post_processor(
    metadata: Mapping[str, Any], tokens: Sequence[str], *, default_bos: bool
) -> processors.TemplateProcessing | None:
    """Puts the begin and end token round a text, where the file asks for it."""
    parts = ["$A"]
    special: list[tuple[str, int]] = []
    for name, default, place in (("bos", default_bos, 0), ("eos", False, 1)):
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if index is None or not metadata.get(f"tokenizer.ggml.add_{name}_token", default):
            continue
        token = tokens[int(index)]
        parts.insert(len(parts) * place, token)
        special.append((token, int(index)))
    if not special:
        return None
    return processors.TemplateProcessing(single=parts, special_tokens=special)
