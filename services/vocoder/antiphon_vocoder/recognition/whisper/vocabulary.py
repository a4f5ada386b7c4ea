"""Whisper's special tokens and the text of its ordinary ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from antiphon_vocoder.recognition.whisper.languages import LANGUAGES

TIMESTAMP_SECONDS = 0.02


def _byte_level_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE uses for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_level_alphabet()


class Vocabulary:
    """Tokens of one whisper model.

    Args:
        path: its tokenizer.json.

    Raises:
        ValueError: the file lacks whisper's special tokens.
    """

    def __init__(self, path: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self.end = self._token("<|endoftext|>")
        self.start = self._token("<|startoftranscript|>")
        self.previous = self._token("<|startofprev|>")
        self.no_timestamps = self._token("<|notimestamps|>")
        self.first_timestamp = self.no_timestamps + 1
        self.no_speech = self._token("<|nospeech|>", "<|nocaptions|>")
        self.languages = [
            code for code in LANGUAGES if self._tokenizer.token_to_id(f"<|{code}|>") is not None
        ]
        """Codes of the languages that have a token."""

    def encode_text(self, text: str) -> list[int]:
        """Tokens of text that stands behind other text."""
        return self._tokenizer.encode(" " + text.strip(), add_special_tokens=False).ids

    def language_token(self, language: str) -> int:
        """Token of an ISO 639-1 code.

        Raises:
            ValueError: the model has no such language.
        """
        return self._token(f"<|{language}|>")

    def task_token(self, translate: bool) -> int:
        """Token of a task of a multilingual model."""
        return self._token("<|translate|>" if translate else "<|transcribe|>")

    def is_text(self, token: int) -> bool:
        """Whether the token has text: neither special nor a timestamp."""
        return token < self.end

    def seconds(self, token: int) -> float | None:
        """Time of a timestamp token; None for others."""
        if token < self.first_timestamp:
            return None
        return (token - self.first_timestamp) * TIMESTAMP_SECONDS

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the text tokens among ``tokens``."""
        return self._tokenizer.decode([token for token in tokens if self.is_text(token)])

    def text_bytes(self, token: int) -> bytes:
        """Bytes of a text token, perhaps a part of a character."""
        return bytes(_BYTES[character] for character in self._tokenizer.id_to_token(token) or "")

    def split_words(self, tokens: Sequence[int]) -> list[tuple[str, int]]:
        """(word, number of tokens) of text tokens; a word begins with a space.

        Tokens that hold parts of one character stay together. Without spaces between words, as
        in Chinese, each character group is a word.
        """
        words: list[tuple[str, int]] = []
        pending: list[int] = []
        for token in tokens:
            pending.append(token)
            piece = self._tokenizer.decode(pending)
            if "\ufffd" in piece:
                continue
            if words and not piece.startswith(" ") and piece.isascii():
                word, count = words[-1]
                words[-1] = (word + piece, count + len(pending))
            else:
                words.append((piece, len(pending)))
            pending = []
        return words

    def _token(self, *names: str) -> int:
        """The token of the first name that the tokenizer has."""
        for name in names:
            token = self._tokenizer.token_to_id(name)
            if token is not None:
                return token
        raise ValueError(f"the tokenizer has no {names[0]}")
