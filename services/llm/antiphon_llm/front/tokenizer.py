"""The model's tokenizer: text to ids, ids to exact bytes.

**Control tokens in what people write.** A prompt given as plain text is the caller's own and is
parsed with control tokens. Chat content is not: a message that contains ``<|im_end|>`` is text
that looks like a control token, and must not close the turn. Before rendering, each such
occurrence is broken by a guard character behind its first character (``guard``); after
rendering, the text is encoded in pieces around the guards (``encode_guarded``), so that only what
the template wrote itself becomes a control token. The model sees the person's characters
unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from antiphon_llm import fingerprint
from antiphon_llm.front.errors import TokenizerError
from antiphon_llm.front.gguf_tokenizer import SPACE
from antiphon_llm.front.gguf_tokenizer import build as build_from_gguf

GUARD = "\ufdd0"
"""A Unicode noncharacter: never part of a text that is meant for interchange."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class SpecialTokens:
    """The named tokens that templates refer to; None where the model has none."""

    bos: str | None = None
    eos: str | None = None
    unk: str | None = None
    pad: str | None = None


class Tokenizer:
    """A loaded tokenizer. Thread-safe: nothing changes after construction but caches.

    Args:
        fast: the ``tokenizers`` object.
        special: named special tokens.
        fingerprint: digest of everything that decides ids.
    """

    def __init__(self, fast: FastTokenizer, special: SpecialTokens, fingerprint: str) -> None:
        self._fast = fast
        self.special = special
        self.fingerprint = fingerprint
        self.vocabulary_size = fast.get_vocab_size(with_added_tokens=True)
        added = fast.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self.control_ids = frozenset(index for index, token in added.items() if token.special)
        self._control = _ControlTokens(self._added[index] for index in self.control_ids)
        steps = _steps(fast.decoder)
        self._byte_level = any(step["type"] == "ByteLevel" for step in steps)
        if not self._byte_level and not any(_restores_spaces(step) for step in steps):
            kinds = ", ".join(step["type"] for step in steps) or "none"
            raise TokenizerError(
                f"the tokenizer's decoder ({kinds}) is not supported; supported are byte-level "
                "BPE and SentencePiece"
            )
        self.strips_first_space = any(
            step["type"] == "Strip" or step.get("prepend_scheme", "never") != "never"
            for step in steps
        )
        self._prepends = any(
            step["type"] == "Prepend" or step.get("prepend_scheme", "never") != "never"
            for step in (*_steps(fast.normalizer), *_steps(fast.pre_tokenizer))
        )
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; control tokens inside it are parsed.

        Args:
            text: any text; lone surrogates are not allowed.
            add_special_tokens: put the begin and end tokens round it that the model expects.
        """
        # The form that leaves out character offsets, of which nobody asks here: it takes half the
        # time on a short text and two thirds on a long one.
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts as ``encode`` gives them, with the tokens that stand round a text."""
        return [item.ids for item in self._fast.encode_batch_fast(list(texts))]

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Ids of two texts, joined as the model's post-processor joins a pair."""
        (encoding,) = self._fast.encode_batch_fast([(first, second)])
        return encoding.ids

    def guard(self, text: str) -> str:
        """The text with every control token broken by a guard, for use inside a template."""
        return self._control.guard(text.replace(GUARD, "\ufffd"))

    def unguard(self, rendered: str) -> str:
        """A rendered text as a person reads it."""
        return rendered.replace(GUARD, "")

    def encode_guarded(self, rendered: str) -> list[int]:
        """Ids of a rendered template: guarded text is literal, the rest is parsed."""
        pieces = rendered.split(GUARD)
        ids = self.encode(pieces[0], add_special_tokens=False)
        for piece in pieces[1:]:
            ids += self._encode_continuation(piece)
        return ids

    def _encode_continuation(self, piece: str) -> list[int]:
        """A piece that continues a text: no space may be put before it."""
        if not self._prepends:
            return self.encode(piece, add_special_tokens=False)
        literal, rest = self._control.split_first(piece)
        tokens = self._fast.model.tokenize(literal.replace(" ", SPACE))
        ids = [token.id for token in tokens]
        return ids + (self.encode(rest, add_special_tokens=False) if rest else [])

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes, possibly part of a UTF-8 character; empty for an unused id."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._read_bytes(token_id)
        return known

    def decode(self, ids: Iterable[int], *, skip_control: bool = True) -> str:
        """The text of ids; bytes that are no UTF-8 show as U+FFFD.

        Args:
            ids: from the start of a text.
            skip_control: leave control tokens out.
        """
        hidden = self.control_ids if skip_control else frozenset()
        raw = b"".join(self.token_bytes(index) for index in ids if index not in hidden)
        if self.strips_first_space and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", "replace")

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact content."""
        return self._fast.token_to_id(token)

    def added_id(self, token: str) -> int | None:
        """The id of a token that stands for itself wherever its text does, if there is one."""
        index = self.token_id(token)
        return index if index in self._added else None

    def _read_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return (added if self._byte_level else added.replace(SPACE, " ")).encode()
        token = self._fast.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            return _from_byte_level(token)
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte:
            return bytes([int(byte[1], 16)])
        return token.replace(SPACE, " ").encode()


class _ControlTokens:
    """Finds control tokens in a text in time linear in its length."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(token for token in tokens if token)
        lengths: dict[str, set[int]] = {}
        for token in self._tokens:
            lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        starts = "".join(re.escape(first) for first in self._lengths)
        self._starts = re.compile(f"[{starts}]") if starts else None

    def guard(self, text: str) -> str:
        places = [place for place, _ in self._find(text)]
        if not places:
            return text
        cuts = [0, *(place + 1 for place in places), len(text)]
        return GUARD.join(text[cuts[i] : cuts[i + 1]] for i in range(len(cuts) - 1))

    def split_first(self, text: str) -> tuple[str, str]:
        """The part before the first control token, and the rest."""
        for place, _ in self._find(text):
            return text[:place], text[place:]
        return text, ""

    def _find(self, text: str) -> Iterable[tuple[int, int]]:
        if self._starts is None:
            return
        for match in self._starts.finditer(text):
            place = match.start()
            for length in self._lengths[match[0]]:
                if text[place : place + length] in self._tokens:
                    yield place, length
                    break


def from_gguf(metadata: dict[str, Any]) -> Tokenizer:
    """The tokenizer inside a GGUF file.

    Raises:
        TokenizerError: absent, damaged or of an unknown kind.
    """
    tokens: Sequence[str] = metadata.get("tokenizer.ggml.tokens", ())

    def named(name: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return tokens[int(index)] if index is not None and int(index) < len(tokens) else None

    special = SpecialTokens(named("bos"), named("eos"), named("unknown"), named("padding"))
    return Tokenizer(build_from_gguf(metadata), special, fingerprint.of_metadata(metadata))


def from_directory(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory with a ``tokenizer.json``.

    Raises:
        TokenizerError: the file is absent or damaged.
    """
    path = directory / "tokenizer.json"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"{path} cannot be read ({error.strerror}); a checkpoint directory needs the fast "
            "tokenizer's file tokenizer.json"
        ) from None
    try:
        fast = FastTokenizer.from_buffer(data)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} is not a tokenizer: {error}") from None
    config = read_json(directory / "tokenizer_config.json")
    special = SpecialTokens(*(_content(config.get(f"{name}_token")) for name in _NAMED))
    return Tokenizer(fast, special, fingerprint.of_directory(directory))


_NAMED = ("bos", "eos", "unk", "pad")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one when there is no such file.

    Raises:
        TokenizerError: the file holds something else.
    """
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise TokenizerError(f"{path} must hold a JSON object")
    return document


def _content(token: object) -> str | None:
    """A special token's text, given as text or as an object with its content."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _steps(component: Any) -> list[dict[str, Any]]:
    """The steps of a normaliser, pre-tokeniser or decoder, sequences flattened."""
    if component is None:
        return []

    def flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
        for key in ("normalizers", "pretokenizers", "decoders"):
            if key in step:
                return [inner for part in step[key] for inner in flatten(part)]
        return [step]

    return flatten(json.loads(component.__getstate__()))


def _restores_spaces(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return step.get("replacement", SPACE) == SPACE
    return step["type"] == "Replace" and step.get("content") == " "


def _byte_level_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE uses for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_level_alphabet()


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:
        return token.encode()
