"""Any server of OpenAI's completions or chat completions as an event stream."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec

from bench.load.record import Ended, Record, RequestFailed
from bench.load.targets.http_stream import Reply, StreamClient
from bench.load.workload import Job, Workload

Endpoint = Literal["completions", "chat"]

_WORDS = (
    "river",
    "stone",
    "green",
    "table",
    "morning",
    "seven",
    "paper",
    "window",
    "quiet",
    "road",
)
"""Words of one token in common vocabularies: text prompts are about as long as asked for."""

_AT_ONCE_S = 0.005
"""A client that leaves before its first token still lets the request reach the server."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    """The fields that are read; others are skipped by the decoder."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_chunks = msgspec.json.Decoder(_Chunk)


class OpenAiTarget:
    """Drives ``POST <base URL>/completions`` or ``/chat/completions`` with ``stream``.

    The completions form sends the prompt as token ids where ``ids`` is true, which every peer
    counts alike; text prompts are words, and their token count is what usage says.

    Args:
        base_url: up to and including ``/v1``.
        model: served name; empty takes the first that ``/models`` lists.
        key: bearer token; empty sends none.
        extra: fields added to each body, for options that only one server knows.
    """

    token_source = (
        "usage where the server sends it (tokens.with_usage of the requests), for each piece where "
        "chunks carry it; else one token a piece"
    )

    def __init__(
        self,
        base_url: str,
        workload: Workload,
        *,
        endpoint: Endpoint = "completions",
        ids: bool = True,
        model: str = "",
        key: str = "",
        extra: dict[str, Any] | None = None,
    ) -> None:
        if endpoint == "chat" and ids:
            raise ValueError("chat takes messages of text: token ids go with completions only")
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self._client = StreamClient(base_url, headers)
        self._workload = workload
        self._path = "/chat/completions" if endpoint == "chat" else "/completions"
        self._endpoint = endpoint
        self._ids = ids
        self._model = model
        self._extra = extra or {}

    async def open(self) -> dict[str, Any]:
        """Finds the model."""
        if not self._model:
            try:
                reply = await self._client.request("GET", "/models")
                self._model = msgspec.json.decode(reply.body)["data"][0]["id"]
            except (OSError, msgspec.DecodeError, LookupError, TypeError) as error:
                raise RequestFailed("NO_BACKEND", f"no model listed: {error}", "") from None
        prompt = "ids" if self._ids else "text"
        return {"protocol": f"OpenAI {self._endpoint}", "model": self._model, "prompt": prompt}

    async def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    async def run(self, record: Record) -> None:
        """See Target; a deadline is kept by the client, which leaves when it passes."""
        headers = {}
        if record.job.tenant:
            headers["x-antiphon-tenant"] = record.job.tenant
        if record.job.batch:
            headers["x-antiphon-priority"] = "batch"
        body = msgspec.json.encode(self._body(record.job))
        reader = _EventReader(record)
        limit = _AT_ONCE_S if record.leaves else record.job.deadline_s
        try:
            async with asyncio.timeout(limit):
                reply = await self._client.request(
                    "POST", self._path, body, headers, on_event=reader.event
                )
        except TimeoutError:
            if record.leaves:
                return
            raise RequestFailed("DEADLINE", "the client's deadline passed", "client") from None
        except OSError as error:
            raise RequestFailed("CONNECTION", str(error), "") from None
        if reply.status != 200:
            raise _refusal(reply)

    def _body(self, job: Job) -> dict[str, Any]:
        workload = self._workload
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": job.output_tokens,
            "ignore_eos": True,
            "temperature": workload.temperature,
            "top_p": workload.top_p,
            "seed": job.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if workload.top_k:
            body["top_k"] = workload.top_k
        prompt = list(job.prompt_ids) if self._ids else words(job.prompt_ids)
        if self._endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        return body | self._extra


class _EventReader:
    """Turns the events of one stream into pieces and a terminal."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._counted = 0
        """Output tokens that usage has named so far."""
        self._usage: _Usage | None = None

    def event(self, data: bytes) -> bool:
        """Takes one event; False when the client leaves."""
        record = self._record
        if data == b"[DONE]":
            record.ended = self._ended()
            return True
        try:
            chunk = _chunks.decode(data)
        except msgspec.DecodeError as error:
            record.failure = RequestFailed("BAD_CHUNK", str(error), "")
            return False
        if (error := bytes(chunk.error)) != b"null":
            record.failure = _error(error, "stream")
            return False
        before = self._counted
        if chunk.usage is not None:
            self._usage = chunk.usage
            self._counted = max(self._counted, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            record.finish_reason = choice.finish_reason or record.finish_reason
            if _has_text(choice):
                record.piece(self._counted - before if self._counted > before else 1)
        return not record.leaves

    def _ended(self) -> Ended:
        usage = self._usage
        if usage is None:
            return Ended()
        details = usage.prompt_tokens_details
        return Ended(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=None if details is None else details.cached_tokens,
            output_tokens=usage.completion_tokens,
        )


def words(ids: tuple[int, ...]) -> str:
    """A text of one common word for each id; equal ids give equal words."""
    return " ".join(_WORDS[item % len(_WORDS)] for item in ids)


def _has_text(choice: _Choice) -> bool:
    if choice.delta is not None:
        return bool(choice.delta.content or choice.delta.reasoning_content)
    return bool(choice.text)


def _refusal(reply: Reply) -> RequestFailed:
    """The error of an answer that is no stream."""
    failure = _error(reply.body, str(reply.status))
    wait = reply.headers.get("retry-after", "")
    if wait.replace(".", "", 1).isdigit():
        failure.retry_after = float(wait)
    return failure


def _error(body: bytes, status: str) -> RequestFailed:
    """Reads ``{"error": {"code", "message"}}``, the inner object alone, or anything else."""
    try:
        found = msgspec.json.decode(body)
        found = found.get("error", found)
        reason = str(found.get("code") or found.get("type") or f"HTTP {status}")
        return RequestFailed(reason, str(found.get("message", "")), status)
    except (msgspec.DecodeError, AttributeError):
        reason = f"HTTP {status}" if status != "0" else "CONNECTION"
        return RequestFailed(reason, body[:200].decode(errors="replace"), status)
