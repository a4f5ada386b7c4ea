"""The engine's thread: encodes what arrives, and decodes all texts that are open in one batch.

A step is a sentence: admit what waits, run the rows, let each search choose. Texts join and leave
between steps; a cancelled one leaves at the next step and frees its rows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from antiphon_core.logs import get_logger

from antiphon_vocoder.codec_engine.device import is_fatal
from antiphon_vocoder.recognition.whisper.backend import Attempt, Generated, IsCancelled
from antiphon_vocoder.recognition.whisper_torch.decoder import RowInput
from antiphon_vocoder.recognition.whisper_torch.model import WhisperModel
from antiphon_vocoder.recognition.whisper_torch.rules import (
    ANYTHING,
    Allowed,
    LogitRules,
    Scores,
    TokenRules,
)
from antiphon_vocoder.recognition.whisper_torch.search import (
    Choices,
    Search,
    allowed_rows,
    open_search,
)

_RECORDED_TOKENS = 32
"""A step may have so many at least, so that a prompt fits beside other rows."""

log = get_logger("recognition.whisper")


@dataclass(eq=False)
class _Text:
    """A decoding in the batch or waiting for rows.

    Attributes:
        audio: block table of the audio.
        rows: rows of the memory, one for each that the search may need.
    """

    attempt: Attempt
    audio: torch.Tensor
    search: Search
    is_cancelled: IsCancelled
    result: Future[Generated]
    rows: list[int] = field(default_factory=list)
    no_speech: float = 0.0
    has_begun: bool = False


@dataclass(eq=False)
class _Task:
    """Work that runs alone between two steps."""

    run: Callable[[], Any]
    is_cancelled: IsCancelled
    result: Future[Any]


class Engine:
    """Owns a model; every method but the constructor is safe from any thread.

    Args:
        model: with ``rows`` rows of text of which the last is for tasks.
        rules: of its tokens.
        rows: as the model was made.
        beams: most of an attempt.
    """

    def __init__(self, model: WhisperModel, rules: TokenRules, rows: int, beams: int) -> None:
        self._model = model
        self._rules = rules
        self._logit_rules = LogitRules(rules, model.device)
        self._recorded = model.record_steps(
            self._logit_rules, tokens=max(rows, _RECORDED_TOKENS), top=2 * beams
        )
        self.task_row = rows - 1
        self._free = list(range(rows - 1))
        self._urgent: deque[_Task] = deque()
        self._tasks: deque[_Task] = deque()
        self._waiting: deque[_Text] = deque()
        self._live: list[_Text] = []
        self._changed = threading.Condition()
        self._stopping = False
        self.failure: Exception | None = None
        """What left the device in an unknown state: nothing runs any more."""
        self.steps = 0
        """Steps so far."""
        self.row_steps = 0
        """Rows of all steps so far: over ``steps`` it is the mean batch."""
        self.graph_misses = 0
        """Of those on a CUDA device: a prompt was too long."""
        self._thread = threading.Thread(target=self._loop, name="whisper", daemon=True)
        self._thread.start()

    def run(
        self, task: Callable[[], Any], is_cancelled: IsCancelled, *, urgent: bool = False
    ) -> Any:
        """Runs ``task`` on the engine's thread between two steps and returns its result.

        Urgent tasks come before others that wait.

        Raises:
            CancelledError: it was cancelled before it began, or the engine stopped.
        """
        item = _Task(task, is_cancelled, Future())
        queue = self._urgent if urgent else self._tasks
        self._put(lambda: queue.append(item))
        return item.result.result()

    def generate(
        self, attempt: Attempt, audio: torch.Tensor, is_cancelled: IsCancelled
    ) -> Generated:
        """Decodes in the batch.

        Raises:
            CancelledError: it was cancelled, or the engine stopped.
            MemoryError: the device has no memory left.
        """
        search = open_search(self._rules, attempt)
        text = _Text(attempt, audio, search, is_cancelled, Future())
        self._put(lambda: self._waiting.append(text))
        return text.result.result()

    def stop(self) -> None:
        """Ends the thread; what waits is cancelled."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _put(self, append: Callable[[], None]) -> None:
        with self._changed:
            if self._stopping:
                raise CancelledError
            append()
            self._changed.notify()

    def _loop(self) -> None:
        try:
            self._serve()
        except Exception as error:  # a defect of the engine: nobody may wait for it
            log.exception("whisper_engine_failed")
            with self._changed:
                self.failure, self._stopping = error, True
        for item in (*self._live, *self._waiting, *self._urgent, *self._tasks):
            if not item.result.done():
                item.result.set_exception(CancelledError())

    @torch.inference_mode()
    def _serve(self) -> None:
        self._model.bind_thread()
        while self._wait():
            # One at a time, so that an encoding holds up the texts of the batch for one step.
            if self._urgent or self._tasks:
                self._answer((self._urgent or self._tasks).popleft())
            self._drop_cancelled()
            if self._live:
                self._guarded_step()

    def _wait(self) -> bool:
        """Waits until there is work; whether the engine goes on."""
        with self._changed:
            while not self._stopping:
                self._admit()
                if self._urgent or self._tasks or self._live:
                    return True
                self._changed.wait()
            return False

    def _admit(self) -> None:
        while self._waiting and len(self._free) >= self._waiting[0].search.width:
            text = self._waiting.popleft()
            text.rows = [self._free.pop(0) for _ in range(text.search.width)]
            self._live.append(text)

    def _drop_cancelled(self) -> None:
        for text in [text for text in self._live if text.is_cancelled()]:
            text.result.set_exception(CancelledError())
            self._leave(text)

    def _leave(self, text: _Text) -> None:
        self._live.remove(text)
        with self._changed:
            # The lowest rows are taken first, so that memory follows what is open at once.
            self._free = sorted(self._free + text.rows)

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as error:  # the texts of the batch fail, further ones may work
            for text in list(self._live):
                if not text.result.done():
                    text.result.set_exception(_typed(error))
                self._leave(text)
            self._stop_if_fatal(error)

    def _answer(self, task: _Task) -> None:
        if task.is_cancelled():
            task.result.set_exception(CancelledError())
            return
        try:
            task.result.set_result(task.run())
        except Exception as error:  # the caller's thread reports it
            task.result.set_exception(_typed(error))
            self._stop_if_fatal(error)

    def _stop_if_fatal(self, error: Exception) -> None:
        if is_fatal(error):
            with self._changed:
                self.failure, self._stopping = error, True

    def _step(self) -> None:
        inputs = [row for text in self._live for row in _inputs(text)]
        choices = self._choose(inputs)
        self.steps += 1
        self.row_steps += len(inputs)
        position = 0
        for text in list(self._live):
            count = len(text.search.rows)
            text.search.advance(choices[position : position + count])
            position += count
            text.has_begun = True
            if text.search.rows:
                self._copy(text)
            else:
                text.result.set_result(_generated(text))
                self._leave(text)

    def _choose(self, inputs: list[RowInput]) -> list[Choices]:
        """Runs the rows; choices of all, and in new texts what they say about no speech."""
        allowed = [
            one
            for text in self._live
            for one in allowed_rows(
                self._rules,
                text.search,
                timestamps=self._rules.no_timestamps not in text.attempt.prompt,
            )
        ]
        ends = list(accumulate(len(row.tokens) for row in inputs))
        places = {end - 1: row for row, end in enumerate(ends)}
        starts = self._starts(ends)
        for token in starts.values():
            if token not in places:
                places[token] = len(places)
                allowed.append(ANYTHING)
        scores = self._scores(inputs, list(places), allowed)
        for text, token in starts.items():
            text.no_speech = scores.no_speech[places[token]]
        draws = [text.search.draws for text in self._live for _ in text.search.rows]
        return [
            Choices(
                list(zip(scores.tokens[row], scores.logprobs[row], strict=True)),
                scores.rows[row].cpu().numpy() if draws[row] else None,
            )
            for row in range(len(inputs))
        ]

    def _starts(self, ends: list[int]) -> dict[_Text, int]:
        """For each new text the place of its start token among all tokens."""
        starts, row = {}, 0
        for text in self._live:
            if not text.has_begun:
                prompt = list(text.attempt.prompt)
                starts[text] = ends[row] - len(prompt) + prompt.index(self._rules.start)
            row += len(text.search.rows)
        return starts

    def _scores(self, inputs: list[RowInput], picked: list[int], allowed: list[Allowed]) -> Scores:
        """What may follow the picked ones of all tokens."""
        if self._recorded is not None:
            if sum(len(row.tokens) for row in inputs) <= self._recorded.tokens:
                return self._recorded(inputs, picked, allowed)
            self.graph_misses += 1
        decoder = self._model.decoder
        logits = decoder.logits(decoder(inputs)[picked])
        top = max(text.search.top for text in self._live)
        return self._logit_rules.scores(logits, allowed, top)

    def _copy(self, text: _Text) -> None:
        copies = text.search.copies
        if copies:
            positions = len(text.attempt.prompt) + len(text.search.texts[0].tokens) - 1
            sources = [text.rows[source] for source, _ in copies]
            targets = [text.rows[target] for _, target in copies]
            self._model.memory.copy_rows(sources, targets, positions)


def _inputs(text: _Text) -> list[RowInput]:
    prompt, search = text.attempt.prompt, text.search
    if not text.has_begun:
        return [RowInput(prompt, 0, text.rows[0], text.audio)]
    return [
        RowInput(one.tokens[-1:], len(prompt) + len(one.tokens) - 1, text.rows[row], text.audio)
        for row, one in zip(search.rows, search.texts, strict=True)
    ]


def _generated(text: _Text) -> Generated:
    best = text.search.best()
    # Whisper's rules count the end, whether or not there was room for it.
    return Generated(best.tokens, best.logprob / (len(best.tokens) + 1), text.no_speech)


def _typed(error: Exception) -> BaseException:
    """MemoryError where a device has no memory left."""
    return MemoryError(str(error)) if isinstance(error, torch.OutOfMemoryError) else error
