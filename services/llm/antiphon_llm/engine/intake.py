"""From messages to live requests: validation, cancels, tombstones.

Admission is total: whatever goes wrong with one request becomes the terminal of that request.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from antiphon_core.logs import get_logger

from antiphon_llm.messages import Cancel, Embedding, EmbedSubmit, Finish, Submit
from antiphon_llm.sampler.row import SamplerRow

from .adapters.desk import AdapterDesk
from .adapters.registry import Adapter
from .constraint_desk import ConstraintDesk
from .door import MEMORY_PRESSURE, Door
from .live import LiveRequests
from .outbox import Outbox
from .readout import PooledVector, Pooling, Readout
from .refused import RequestRefused
from .request import Request, Timings
from .scheduler import Scheduler

_log = get_logger(__name__)


class Tombstones:
    """Ids cancelled before they were submitted: kept for a while, and not too many."""

    def __init__(
        self,
        *,
        seconds: float = 60.0,
        limit: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._limit = limit
        self._clock = clock
        self._expiry: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._expiry)

    def leave(self, request_id: str) -> None:
        """Notes a cancel of an id that is not live."""
        now = self._clock()
        self._expiry[request_id] = now + self._seconds
        self._expiry.move_to_end(request_id)
        while self._expiry and (
            len(self._expiry) > self._limit or next(iter(self._expiry.values())) <= now
        ):
            self._expiry.popitem(last=False)

    def take(self, request_id: str) -> bool:
        """Whether the id was cancelled beforehand; forgets it."""
        expiry = self._expiry.pop(request_id, None)
        return expiry is not None and expiry > self._clock()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What validation needs to know about the model."""

    vocab_size: int
    context_limit: int
    eos_ids: frozenset[int]
    draft_depth: int = 0
    """Most drafts of a row and step."""
    readouts: Mapping[str, Readout] = field(default_factory=lambda: {"embedding": Readout()})
    """What may be read off a prompt, by the name in EmbedSubmit."""
    speech_ids: Sequence[int] = ()
    """Ids that are drawn for requests that ask for speech only."""


class Intake:
    """Turns Submit, EmbedSubmit and Cancel into changes of the live requests."""

    def __init__(
        self,
        served: ServedModel,
        scheduler: Scheduler,
        live: LiveRequests,
        outbox: Outbox,
        answer: Callable[[Embedding], None],
        door: Door,
        *,
        tombstones: Tombstones | None = None,
    ) -> None:
        self._served = served
        self._scheduler = scheduler
        self._live = live
        self._outbox = outbox
        self._answer = answer
        self._door = door
        self.tombstones = tombstones if tombstones is not None else Tombstones()
        self.constraints: ConstraintDesk | None = None
        """Where constraints are compiled; None serves none."""
        self.adapters: AdapterDesk | None = None
        """Where adapters are loaded; None serves none."""
        self._sequence = 0

    @property
    def compiling(self) -> int:
        """Requests that wait for their constraint before they are queued."""
        return len(self.constraints) if self.constraints is not None else 0

    @property
    def pending(self) -> bool:
        """Whether a thread beside the loop's works for it."""
        return self.compiling > 0 or (self.adapters is not None and self.adapters.pending)

    def counters(self) -> dict[str, int]:
        """What became of constraints and adapters, by name."""
        counters = {} if self.constraints is None else self.constraints.grammars.counters()
        return counters if self.adapters is None else {**counters, **self.adapters.counters()}

    def adapter_users(self, version: int) -> int:
        """How many requests, queued or not, use the adapter of this version."""
        held = 0 if self.constraints is None else self.constraints.using(version)
        return held + self._live.using(version)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a text of the model."""
        return self._served.eos_ids

    def cancel(self, message: Cancel) -> None:
        """Ends the request now, or its submit when that arrives."""
        held = self.constraints.drop(message.request_id) if self.constraints is not None else None
        if held is not None:
            self._refuse(held, "cancelled", RequestRefused("cancelled", "CANCELLED"))
            return
        request = self._live.get(message.request_id)
        if request is None:
            self.tombstones.leave(message.request_id)
        else:
            self._live.finish(request, "cancelled")

    def advance(self) -> None:
        """Queues the requests whose constraint is compiled by now, and ends those that fail."""
        if self.constraints is None:
            return
        for message, request, refused in self.constraints.take():
            try:
                if refused is not None:
                    raise refused
                self._require_open()
                self._live.add(request)
            except RequestRefused as reason:
                ended = "deadline" if reason.reason == "DEADLINE" else "error"
                self._refuse(message, ended, reason)

    def finish_all(self, error: str, error_reason: str) -> None:
        """Ends the requests that are not queued yet with an error."""
        if self.constraints is not None:
            for message in self.constraints.drop_all():
                self._refuse(message, "error", RequestRefused(error, error_reason))

    def submit(self, message: Submit | EmbedSubmit) -> None:
        """Queues one sequence, or sends its terminal."""
        if self.tombstones.take(message.request_id):
            early = RequestRefused("cancelled before it was submitted", "CANCELLED")
            self._refuse(message, "cancelled", early)
            return
        try:
            self._check(message)
            request = (
                self._generation(message)
                if isinstance(message, Submit)
                else self._embedding(message)
            )
            if isinstance(message, Submit) and message.sampling.constraint is not None:
                self._desk().hold(message, request)
                self.advance()
            else:
                self._live.add(request)
        except RequestRefused as refused:
            self._refuse(message, "error", refused)
        except Exception as defect:
            _log.exception("admission_failed", request_id=message.request_id)
            failed = RequestRefused(f"{type(defect).__name__}: {defect}", "INTERNAL")
            self._refuse(message, "error", failed)

    def _check(self, message: Submit | EmbedSubmit) -> None:
        held = self.constraints is not None and message.request_id in self.constraints
        if held or self._live.get(message.request_id) is not None:
            raise RequestRefused(
                f"request id {message.request_id!r} is already live", "ALREADY_EXISTS"
            )
        generates = isinstance(message, Submit)
        _check_prompt(message.prompt_ids, self._served, room=1 if generates else 0)
        self._require_open()
        refusal = self._scheduler.refusal(interactive=message.interactive)
        if refusal is not None:
            raise RequestRefused(
                str(refusal),
                refusal.reason,
                retry_after=self._live.retry_after(),
                limit=refusal.limit,
                observed=refusal.observed,
            )

    def _desk(self) -> ConstraintDesk:
        if self.constraints is None:
            raise RequestRefused("this engine serves no constraints", "UNSUPPORTED_OPTION")
        return self.constraints

    def _require_open(self) -> None:
        closed = self._door.closed()
        if closed is not None:
            # What memory pressure waits for is that nobody is left; the others have no bound.
            short = closed is MEMORY_PRESSURE
            raise RequestRefused(
                closed.message,
                closed.reason,
                retry_after=self._live.retry_after(),
                limit=0 if short else None,
                observed=len(self._live) if short else None,
            )

    def _generation(self, message: Submit) -> Request:
        sampling = message.sampling
        if sampling.max_tokens < 1:
            raise RequestRefused(
                f"max_tokens must be at least 1, got {sampling.max_tokens}", "INVALID_VALUE"
            )
        adapter = self._adapter(message)
        if sampling.draft_depth > self._served.draft_depth:
            raise RequestRefused(
                f"draft_depth must be at most {self._served.draft_depth}, the engine's own, got "
                f"{sampling.draft_depth}",
                "INVALID_VALUE",
                limit=self._served.draft_depth,
                observed=sampling.draft_depth,
            )
        _check_ids("logit_bias", list(sampling.logit_bias), self._served.vocab_size)
        eos = frozenset() if sampling.ignore_eos else self._served.eos_ids
        stop_ids = eos | frozenset(sampling.stop_token_ids)
        request = self._request(message.request_id, message.prompt_ids, sampling.max_tokens)
        request.interactive = message.interactive
        request.tenant = message.tenant
        if adapter is not None:
            request.adapter, request.adapter_version = adapter.name, adapter.version
            request.adapter_slot = adapter.slot
        request.cache = message.cache
        request.deadline = message.deadline
        request.stop_ids = stop_ids
        request.prompt_logprobs = sampling.prompt_logprobs
        request.scored = [None]
        request.sampler = SamplerRow(
            sampling,
            choice=message.choice,
            prompt_ids=message.prompt_ids,
            end_ids=[token for token in stop_ids if 0 <= token < self._served.vocab_size],
            vocabulary=self._served.vocab_size,
            unasked_ids=() if sampling.speech else self._served.speech_ids,
        )
        return request

    def _adapter(self, message: Submit) -> Adapter | None:
        """The adapter that a request names."""
        if not message.adapter:
            return None
        found = None
        if self.adapters is not None:
            found = self.adapters.find(message.tenant, message.adapter)
        if found is None:
            raise RequestRefused(f"no adapter {message.adapter!r} is loaded", "ADAPTER_NOT_FOUND")
        return found

    def _embedding(self, message: EmbedSubmit) -> Request:
        readout = self._served.readouts.get(message.readout)
        if readout is None:
            raise RequestRefused(
                f"readout {message.readout!r} is none of the model's: "
                f"{', '.join(self._served.readouts)}",
                "UNSUPPORTED_OPTION",
            )
        if message.pooling:
            if message.pooling not in tuple(Pooling):
                raise RequestRefused(
                    f"pooling {message.pooling!r} is not one of {', '.join(Pooling)}",
                    "INVALID_VALUE",
                )
            readout = replace(readout, pooling=Pooling(message.pooling))
        if not message.normalise:
            readout = replace(readout, normalise=False)
        request = self._request(message.request_id, message.prompt_ids, 0)
        request.pooled = PooledVector(readout)
        request.interactive = message.interactive
        request.tenant = message.tenant
        request.deadline = message.deadline
        request.cache = message.cache
        return request

    def _request(self, request_id: str, prompt_ids: list[int], max_tokens: int) -> Request:
        self._sequence += 1
        return Request(
            request_id=request_id,
            sequence=self._sequence,
            tokens=list(prompt_ids),
            prompt_length=len(prompt_ids),
            max_tokens=max_tokens,
            timings=Timings(submitted=time.monotonic()),
        )

    def _refuse(self, message: Submit | EmbedSubmit, reason: str, refused: RequestRefused) -> None:
        if isinstance(message, EmbedSubmit):
            self._answer(
                Embedding(
                    message.request_id,
                    [],
                    str(refused),
                    refused.reason,
                    refused.retry_after,
                    refused.limit,
                    refused.observed,
                )
            )
            return
        failed = reason == "error"
        self._outbox.finished(
            Finish(
                request_id=message.request_id,
                reason=reason,
                error=str(refused) if failed else "",
                error_reason=refused.reason if failed else "",
                prompt_tokens=len(message.prompt_ids),
                retry_after=refused.retry_after,
                limit=refused.limit,
                observed=refused.observed,
            )
        )


def _check_prompt(prompt_ids: Sequence[int], served: ServedModel, *, room: int) -> None:
    """``room`` is the output that must fit behind the prompt."""
    if not prompt_ids:
        raise RequestRefused("the prompt has no token", "EMPTY_PROMPT")
    if len(prompt_ids) + room > served.context_limit:
        raise RequestRefused(
            f"the prompt is too long for the context: limit {served.context_limit}, "
            f"observed {len(prompt_ids)}" + (" plus at least 1 output token" if room else ""),
            "CONTEXT_LENGTH_EXCEEDED",
            limit=served.context_limit,
            observed=len(prompt_ids),
        )
    _check_ids("prompt_ids", prompt_ids, served.vocab_size)


def _check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise RequestRefused(
            f"{name} has token id {wrong}, outside the vocabulary 0 to {vocab_size - 1}",
            "INVALID_VALUE",
        )
