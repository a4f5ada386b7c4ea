"""From audio to text with a whisper model, whatever engine runs it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.messages import (
    DecodeOptions,
    RecognizerInfo,
    Segment,
    Token,
    WordTiming,
)
from antiphon_vocoder.recognition.whisper.backend import (
    TEXT_POSITIONS,
    Attempt,
    Backend,
    EncodedAudio,
    Generated,
    IsCancelled,
    never,
)
from antiphon_vocoder.recognition.whisper.features import RATE
from antiphon_vocoder.recognition.whisper.prompt import PromptBuilder
from antiphon_vocoder.recognition.whisper.transcript import Effort, Transcript
from antiphon_vocoder.recognition.whisper.vocabulary import TIMESTAMP_SECONDS, Vocabulary

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
COMPRESSION_LIMIT = 2.4
LOGPROB_LIMIT = -1.0
NO_SPEECH_LIMIT = 0.6
_SURELY_NO_SPEECH = 0.7
_SURE_LOGPROB = -0.4
_FASTEST_TOKENS_PER_SECOND = 12
_EXTRA_TOKENS = 16
_TINY = 1e-9
"""Least probability of a token that is reported."""


@dataclass(frozen=True)
class _Decoded:
    """One decoding at one temperature, and what whisper's rules say of it."""

    tokens: list[int]
    text: str
    temperature: float
    logprob: float
    no_speech: float
    compression: float

    @property
    def is_silence(self) -> bool:
        unsure = self.no_speech > NO_SPEECH_LIMIT and self.logprob < LOGPROB_LIMIT
        # Measured: speech stays below 0.3, while the "you" and "Thank you." that the model invents
        # for noise and music come with 0.7 and more and a log-probability above whisper's limit.
        return unsure or (self.no_speech > _SURELY_NO_SPEECH and self.logprob < _SURE_LOGPROB)

    @property
    def is_plausible(self) -> bool:
        return self.compression <= COMPRESSION_LIMIT and self.logprob >= LOGPROB_LIMIT


class WhisperRecognizer:
    """Whisper's rules over a loaded model. ``transcribe`` may be called from several threads.

    Args:
        backend: the model.
        vocabulary: its tokens.
        beam_size: beams at temperature 0.
    """

    def __init__(self, backend: Backend, vocabulary: Vocabulary, *, beam_size: int = 2) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._prompts = PromptBuilder(vocabulary)
        self._beam_size = beam_size

    @property
    def info(self) -> RecognizerInfo:
        """Languages, and whether it translates."""
        if not self._backend.is_multilingual:
            return RecognizerInfo(languages=["en"], translates=False)
        return RecognizerInfo(languages=self._vocabulary.languages, translates=True)

    @property
    def lanes(self) -> int:
        """Passes that run at once with gain; further ones wait for these."""
        return self._backend.lanes

    @property
    def graph_misses(self) -> int:
        """Steps on a CUDA device that no graph was recorded for, since the start of the process."""
        return self._backend.graph_misses

    @property
    def keywords_left_out(self) -> int:
        """Keywords that did not fit the prompt, since the start of the process."""
        return self._prompts.left_out

    def raise_failure(self) -> None:
        """Raises what made every further pass impossible: the process cannot go on then."""
        self._backend.raise_failure()

    def close(self) -> None:
        """Ends what runs; no call follows."""
        self._backend.close()

    def transcribe(
        self,
        audio: NDArray[np.float32],
        options: DecodeOptions,
        *,
        timestamps: bool = False,
        effort: Effort = Effort.FULL,
        is_cancelled: IsCancelled = never,
    ) -> Transcript:
        """Recognises audio (n,) at 16 kHz in -1..1, at most 30 s.

        Args:
            audio: the excerpt.
            options: language and task must be ones of ``info``.
            timestamps: split into segments with times of their own; else the excerpt is one.
            effort: what the text is for.
            is_cancelled: asked between steps of the work.

        Raises:
            CancelledError: nobody wants the text any more.
        """
        # Somebody waits for the text of an utterance, not for a draft or a part of a file.
        urgent = not timestamps and effort is not Effort.DRAFT
        with self._backend.encode(audio, is_cancelled, urgent=urgent) as encoded:
            return self._transcribe(encoded, len(audio) / RATE, options, timestamps, effort)

    def _transcribe(
        self,
        encoded: EncodedAudio,
        seconds: float,
        options: DecodeOptions,
        timestamps: bool,
        effort: Effort,
    ) -> Transcript:
        language = self._language(encoded, options)
        prompt = self._prompt(options, language, timestamps)
        if options.temperature is not None:
            temperatures = (options.temperature,)
        else:
            temperatures = TEMPERATURES if effort is Effort.FULL else TEMPERATURES[:1]
        beams = 1 if effort is Effort.DRAFT else self._beam_size
        attempts = self._decode(encoded, prompt, temperatures, beams, seconds)
        attempt = _best(attempts)
        # It follows from the audio and the prompt alone.
        no_speech = attempts[0].no_speech
        if attempt is None:
            return Transcript([], language, seconds, effort is Effort.FULL, no_speech)
        is_first_choice = attempt.is_plausible or attempt.is_silence
        settled = effort is Effort.FULL or (effort is Effort.AHEAD and is_first_choice)
        if attempt.is_silence:
            return Transcript([], language, seconds, settled, no_speech)
        if timestamps:
            spans, heard = self._split(attempt.tokens, seconds)
        else:
            spans, heard = [(0.0, seconds, attempt.tokens)], seconds
        segments = [
            self._segment(attempt, tokens, start, end)
            for start, end, tokens in spans
            if self._vocabulary.decode(tokens).strip()
        ]
        if (options.words or options.logprobs) and segments:
            self._add_aligned(segments, encoded, language, options, seconds)
        return Transcript(segments, language, heard, settled, no_speech)

    def _language(self, encoded: EncodedAudio, options: DecodeOptions) -> str:
        if not self._backend.is_multilingual:
            return "en"
        if options.language:
            return options.language
        return encoded.detect_language()

    def _start_sequence(self, language: str, translate: bool) -> list[int]:
        vocabulary = self._vocabulary
        if not self._backend.is_multilingual:
            return [vocabulary.start]
        task = vocabulary.task_token(translate)
        return [vocabulary.start, vocabulary.language_token(language), task]

    def _prompt(self, options: DecodeOptions, language: str, timestamps: bool) -> list[int]:
        prompt = self._start_sequence(language, options.translate)
        before = self._prompts.tokens(options.prompt, options.keywords)
        if before:
            prompt = [self._vocabulary.previous, *before, *prompt]
        return prompt if timestamps else [*prompt, self._vocabulary.no_timestamps]

    def _decode(
        self,
        encoded: EncodedAudio,
        prompt: list[int],
        temperatures: tuple[float, ...],
        beams: int,
        seconds: float,
    ) -> list[_Decoded]:
        """Attempts up to the first one that is plausible or silence."""
        attempts: list[_Decoded] = []
        for temperature in temperatures:
            attempt = self._attempt(encoded, prompt, temperature, beams, seconds)
            attempts.append(attempt)
            if attempt.is_silence or attempt.is_plausible:
                break
        return attempts

    def _attempt(
        self,
        encoded: EncodedAudio,
        prompt: list[int],
        temperature: float,
        beams: int,
        seconds: float,
    ) -> _Decoded:
        # Nobody speaks faster: without a bound a repeating decoder runs to the last position.
        bound = int(seconds * _FASTEST_TOKENS_PER_SECOND) + _EXTRA_TOKENS
        max_length = min(len(prompt) + bound, TEXT_POSITIONS)
        generated = encoded.generate(Attempt(prompt, temperature, beams, max_length))
        return self._judged(generated, temperature)

    def _judged(self, generated: Generated, temperature: float) -> _Decoded:
        text = self._vocabulary.decode(generated.tokens)
        raw = text.strip().encode()
        return _Decoded(
            tokens=generated.tokens,
            text=text,
            temperature=temperature,
            logprob=generated.logprob,
            no_speech=generated.no_speech,
            compression=len(raw) / len(zlib.compress(raw)) if raw else 0.0,
        )

    def _split(
        self, tokens: list[int], seconds: float
    ) -> tuple[list[tuple[float, float, list[int]]], float]:
        """Segments (start, end, tokens) by timestamp tokens, and how far they reach.

        Text behind the last complete pair of times belongs to a further pass, unless it is all.
        """
        spans: list[tuple[float, float, list[int]]] = []
        start = 0.0
        pending: list[int] = []
        for token in tokens:
            time = self._vocabulary.seconds(token)
            if time is None:
                pending.append(token)
                continue
            time = min(time, seconds)
            if pending:
                spans.append((start, max(time, start), pending))
                pending = []
            start = max(time, start)
        if not pending:
            ends_in_pair = len(tokens) > 1 and all(
                self._vocabulary.seconds(token) is not None for token in tokens[-2:]
            )
            return spans, start if ends_in_pair and start > 0 else seconds
        if spans:
            return spans, spans[-1][1]
        return [(start, seconds, pending)], seconds

    def _segment(self, attempt: _Decoded, tokens: list[int], start: float, end: float) -> Segment:
        return Segment(
            text=self._vocabulary.decode(tokens),
            start_ms=round(start * 1000),
            end_ms=round(end * 1000),
            token_ids=tokens,
            temperature=attempt.temperature,
            average_logprob=attempt.logprob,
            compression_ratio=attempt.compression,
            no_speech_probability=attempt.no_speech,
            words=[],
            tokens=[],
        )

    def _add_aligned(
        self,
        segments: list[Segment],
        encoded: EncodedAudio,
        language: str,
        options: DecodeOptions,
        seconds: float,
    ) -> None:
        """Fills in words and tokens from the cross-attention alignment of all segments' tokens."""
        tokens = [
            token
            for segment in segments
            for token in segment.token_ids
            if self._vocabulary.is_text(token)
        ]
        alignment = encoded.align(self._start_sequence(language, options.translate), tokens)
        times = np.minimum(np.array(alignment.positions) * TIMESTAMP_SECONDS, seconds)
        probabilities = alignment.probabilities
        first = 0
        for segment in segments:
            count = sum(self._vocabulary.is_text(token) for token in segment.token_ids)
            part = slice(first, first + count)
            if options.logprobs:
                segment.tokens.extend(
                    Token(self._vocabulary.text_bytes(token), math.log(max(probability, _TINY)))
                    for token, probability in zip(tokens[part], probabilities[part], strict=True)
                )
            if options.words:
                segment.words.extend(self._words(tokens[part], times[first:], probabilities[part]))
            first += count

    def _words(
        self, tokens: list[int], times: NDArray[np.float64], probabilities: list[float]
    ) -> Iterator[WordTiming]:
        """Words of one segment's tokens, with the times from the first of them on."""
        first = 0
        for word, size in self._vocabulary.split_words(tokens):
            yield WordTiming(
                text=word.strip(),
                start_ms=round(times[first] * 1000),
                end_ms=round(times[first + size] * 1000),
                probability=float(np.mean(probabilities[first : first + size])),
            )
            first += size


def _best(attempts: list[_Decoded]) -> _Decoded | None:
    """The last one where it settled the matter, else the likeliest usable one."""
    if attempts[-1].is_silence or attempts[-1].is_plausible:
        return attempts[-1]
    usable = [attempt for attempt in attempts if attempt.compression <= COMPRESSION_LIMIT]
    return max(usable, key=lambda attempt: attempt.logprob, default=None)
