"""The recogniser's queue: finals first, then pauses that may become finals, then the rest.

One thread runs the passes, or as many as the recogniser takes into one batch. A pass over a pause
inside a turn is made ahead of time; when the pause turns out to be the end, its result is the
final. All bookkeeping is under one lock, and messages are sent under it, so that a partial can
never follow its final.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import numpy as np
from antiphon_core.logs import get_logger
from numpy.typing import NDArray

from antiphon_vocoder.recognition.messages import (
    DecodeOptions,
    Failure,
    Partial,
    StreamFailed,
)
from antiphon_vocoder.recognition.pass_records import (
    FilePass,
    FinalRequest,
    Job,
    PassTotals,
    Recognizer,
    StreamPasses,
    answer,
)
from antiphon_vocoder.recognition.pass_runner import PassRunner
from antiphon_vocoder.recognition.segmenter import Excerpt, Pause, Progress, Utterance
from antiphon_vocoder.recognition.speakers.centroid import SpeakerTracker
from antiphon_vocoder.recognition.speakers.model import SpeakerModel
from antiphon_vocoder.recognition.stability import StablePrefix
from antiphon_vocoder.recognition.whisper.backend import IsCancelled, never
from antiphon_vocoder.recognition.whisper.transcript import Effort, Transcript

log = get_logger("recognition.passes")


class PassQueue:
    """Runs the passes of all streams and files; every method is safe from any thread.

    Args:
        recognizer: runs one pass.
        send: takes messages for the front; must not block.
        lanes: passes that run at once. Partials and files leave one of several free.
        speakers: embeds the voices of streams that ask who speaks.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        send: Callable[[object], None],
        *,
        lanes: int = 1,
        speakers: SpeakerModel | None = None,
    ) -> None:
        self.totals = PassTotals()
        self._runner = PassRunner(recognizer, speakers, self.totals)
        self._send = send
        self._changed = threading.Condition()
        self._streams: dict[int, StreamPasses] = {}
        self._finals: deque[tuple[StreamPasses, FinalRequest]] = deque()
        self._pauses: OrderedDict[int, Excerpt] = OrderedDict()
        self._progress: OrderedDict[int, Excerpt] = OrderedDict()
        self._files: deque[FilePass] = deque()
        self._running: list[Job] = []
        self._waiting_limit = max(1, lanes - 1)
        self._file_turn = False
        self._stopping = False
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._guarded_loop, name=f"recognizer-{lane}", daemon=True)
            for lane in range(lanes)
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads after the passes that run; file passes in the queue are cancelled."""
        with self._changed:
            self._stopping = True
            for item in self._files:
                item.result.cancel()
            self._files.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def open(
        self,
        number: int,
        options: DecodeOptions,
        *,
        partials: bool,
        speakers: SpeakerTracker | None = None,
    ) -> None:
        """A stream begins; with ``speakers`` its finals say who speaks."""
        with self._changed:
            self._streams[number] = StreamPasses(number, options, partials, speakers)

    def close(self, number: int) -> None:
        """Forgets a stream; nothing more is sent about it."""
        with self._changed:
            self._forget(number)

    def finish(self, number: int, message: object) -> None:
        """Sends ``message`` after the stream's last final and forgets the stream."""
        with self._changed:
            stream = self._streams.get(number)
            if stream is not None:
                stream.last_message = message
                self._settle(stream)

    def backlog(self, number: int) -> int:
        """Finals of the stream that are not answered."""
        with self._changed:
            stream = self._streams.get(number)
            return len(stream.pending) if stream is not None else 0

    @property
    def queued(self) -> int:
        """Passes waiting."""
        with self._changed:
            return sum(map(len, (self._finals, self._pauses, self._progress, self._files)))

    def submit_ahead(self, number: int, excerpt: Excerpt) -> None:
        """A pass over an utterance that goes on; replaces an older one that has not begun."""
        with self._changed:
            stream = self._streams.get(number)
            if stream is None:
                return
            skipped = self._drop_ahead(number)
            if isinstance(excerpt, Pause):
                self._cancel(stream, lambda job: isinstance(job.ahead, Progress))
                self._pauses[number] = excerpt
            elif stream.partials:
                self._progress[number] = excerpt
            self.totals.partials_skipped += skipped
            self._changed.notify()

    def submit_final(self, number: int, utterance: Utterance) -> None:
        """The pass whose text is the utterance's; audio of length 0 has no text."""
        with self._changed:
            stream = self._streams.get(number)
            if stream is None:
                return
            request = FinalRequest(utterance, time.monotonic())
            stream.pending.append(request)
            self._drop_ahead(number)
            self._cancel(stream, lambda job: job.ahead and job.ahead.span != utterance.span)
            if not len(utterance.audio):
                request.transcript = Transcript([], stream.options.language, 0.0)
            elif stream.latest is not None and stream.latest[0] == utterance.span:
                request.transcript = stream.latest[1]
                self.totals.speculative_hits += 1
            elif not self._is_running(stream, utterance):
                self._finals.append((stream, request))
            self._open_next(stream, utterance.utterance + 1)
            self._settle(stream)
            self._changed.notify()

    def heard(self, number: int, excerpt: Excerpt) -> tuple[bool, Transcript | None]:
        """Whether a pass ahead over this span is done, and its result unless it failed."""
        with self._changed:
            stream = self._streams.get(number)
            if stream is None or stream.heard is None or stream.heard[0] != excerpt.span:
                return False, None
            return True, stream.heard[1]

    def drop_open(self, number: int, next_utterance: int) -> None:
        """The open utterance is dropped: no partial of it follows."""
        with self._changed:
            stream = self._streams.get(number)
            if stream is not None:
                self._drop_ahead(number)
                self._cancel(stream, lambda job: job.ahead)
                self._open_next(stream, next_utterance)

    def submit_file(
        self, audio: NDArray[np.float32], options: DecodeOptions, is_cancelled: IsCancelled = never
    ) -> Future[Transcript]:
        """A pass with timestamps over at most 30 s of a file."""
        item = FilePass(audio, options, is_cancelled, Future())
        with self._changed:
            if self._stopping:
                item.result.cancel()
                return item.result
            self._files.append(item)
            self._changed.notify()
        return item.result

    def _is_running(self, stream: StreamPasses, utterance: Utterance) -> bool:
        return any(
            job.stream is stream and job.ahead is not None and job.ahead.span == utterance.span
            for job in self._running
        )

    def _cancel(self, stream: StreamPasses, which: Callable[[Job], object]) -> None:
        """Those passes of the stream that run need no further step."""
        for job in self._running:
            if job.stream is stream and which(job):
                job.cancelled.set()

    def _drop_ahead(self, number: int) -> int:
        dropped = self._pauses.pop(number, None) is not None
        return int(self._progress.pop(number, None) is not None) + int(dropped)

    def _open_next(self, stream: StreamPasses, utterance: int) -> None:
        stream.open_utterance = utterance
        stream.stable = StablePrefix()
        stream.latest = None

    def _forget(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._cancel(stream, lambda _: True)
        self._drop_ahead(number)
        self._finals = deque(item for item in self._finals if item[0].number != number)

    def raise_failure(self) -> None:
        """Raises what ended a thread, if a defect did: the process cannot go on then."""
        if self._failure is not None:
            raise self._failure

    def _guarded_loop(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            self._failure = error

    def _loop(self) -> None:
        while (job := self._take()) is not None:
            if job.file is not None:
                self._run_file(job.file)
            elif job.stream is not None and job.final is not None:
                self._run_final(job, job.stream, job.final)
            elif job.stream is not None and job.ahead is not None:
                self._run_ahead(job, job.stream, job.ahead)
            self._done(job)

    def _take(self) -> Job | None:
        """Waits for the next job; None at the end."""
        with self._changed:
            while not self._stopping:
                job = self._next()
                if job is not None:
                    self._running.append(job)
                    return job
                self._changed.wait()
            return None

    def _done(self, job: Job) -> None:
        with self._changed:
            if job in self._running:
                self._running.remove(job)
            # A stream may have waited for its pass ahead, and what can wait for a lane.
            self._changed.notify()

    def _next(self) -> Job | None:
        if self._finals:
            stream, request = self._finals.popleft()
            return Job(stream=stream, final=request)
        ahead = self._next_ahead(self._pauses)
        if ahead is not None:
            return ahead
        if sum(job.can_wait for job in self._running) >= self._waiting_limit:
            return None
        # Partials and files share what is left.
        self._file_turn = not self._file_turn
        if self._files and (self._file_turn or not self._progress):
            return Job(file=self._files.popleft())
        return self._next_ahead(self._progress)

    def _next_ahead(self, queue: OrderedDict[int, Excerpt]) -> Job | None:
        """The first whose stream has no other pass ahead, so that its partials stay in order."""
        busy = {job.stream.number for job in self._running if job.stream and job.ahead}
        number = next((number for number in queue if number not in busy), None)
        if number is None:
            return None
        return Job(stream=self._streams[number], ahead=queue.pop(number))

    def _run_file(self, item: FilePass) -> None:
        if not item.result.set_running_or_notify_cancel():
            return
        try:
            transcript = self._runner.run(
                item.audio, item.options, timestamps=True, is_cancelled=item.is_cancelled
            )
        except Exception as error:  # the job's thread reports it
            item.result.set_exception(error)
        else:
            item.result.set_result(transcript)

    def _run_final(self, job: Job, stream: StreamPasses, request: FinalRequest) -> None:
        try:
            request.transcript = self._runner.run(
                request.utterance.audio,
                stream.options,
                is_cancelled=job.cancelled.is_set,
                voices=stream.speakers is not None,
            )
        except CancelledError:
            return
        except MemoryError:
            self._out_of_memory(stream)
            return
        except Exception as error:  # one utterance fails, the stream goes on
            log.exception("utterance_failed", utterance=request.utterance.utterance)
            request.failure = Failure("INTERNAL", "INTERNAL", f"recognition failed: {error}")
        with self._changed:
            self._settle(stream)

    def _run_ahead(self, job: Job, stream: StreamPasses, excerpt: Excerpt) -> None:
        transcript: Transcript | None = None
        try:
            effort = Effort.AHEAD if isinstance(excerpt, Pause) else Effort.DRAFT
            transcript = self._runner.run(
                excerpt.audio,
                stream.options,
                effort=effort,
                is_cancelled=job.cancelled.is_set,
                voices=stream.speakers is not None,
            )
        except CancelledError:
            log.debug("pass_ahead_cancelled", utterance=excerpt.utterance)
        except MemoryError:
            self._out_of_memory(stream)
            return
        except Exception:  # the final tries again and reports
            log.exception("pass_ahead_failed", utterance=excerpt.utterance)
        with self._changed:
            # From here on a final of this span must find the result or queue a pass of its own.
            self._running.remove(job)
            stream.heard = (excerpt.span, transcript)
            settled = transcript is not None and transcript.is_settled
            for request in list(stream.pending):
                if not request.is_answered and request.utterance.span == excerpt.span:
                    self._answer_ahead(stream, request, transcript if settled else None)
            if transcript is None or excerpt.utterance != stream.open_utterance:
                return
            if settled:
                stream.latest = (excerpt.span, transcript)
            self._publish(stream, transcript)

    def _answer_ahead(
        self, stream: StreamPasses, request: FinalRequest, transcript: Transcript | None
    ) -> None:
        if transcript is None:
            self._finals.appendleft((stream, request))
            return
        request.transcript = transcript
        self.totals.speculative_hits += 1
        self._settle(stream)

    def _publish(self, stream: StreamPasses, transcript: Transcript) -> None:
        if not stream.partials or stream.number not in self._streams or not transcript.text:
            return
        published = stream.stable.feed(transcript.text)
        if published is not None:
            text, stable = published
            self._send(Partial(stream.number, stream.open_utterance, text, stable))

    def _settle(self, stream: StreamPasses) -> None:
        """Sends the finals that are answered, in order, and then the stream's last message."""
        if stream.number not in self._streams:
            return
        while stream.pending and stream.pending[0].is_answered:
            self._send(answer(stream.number, stream.pending.popleft(), stream.speakers))
        if not stream.pending and stream.last_message is not None:
            self._send(stream.last_message)
            self._forget(stream.number)

    def _out_of_memory(self, stream: StreamPasses) -> None:
        failure = Failure(
            "RESOURCE_EXHAUSTED", "MEMORY_PRESSURE", "the recogniser is out of memory"
        )
        with self._changed:
            if stream.number in self._streams:
                self._send(StreamFailed(stream.number, failure))
                self._forget(stream.number)
