"""Structured logs: one JSON object a line on stderr.

Each line has ts, level, service, boot_id, logger and event, and trace_id and request_id inside a
request. Texts of users, secrets and audio are never logged.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import msgspec

from antiphon_core.boot_id import BOOT_ID
from antiphon_core.request_context import current

# structlog imports rich where it is installed, for tracebacks that we never print; that would
# be a tenth of a service's start. A module that is None fails to import, and then structlog
# does without.
_without_rich = "rich" not in sys.modules
if _without_rich:
    sys.modules["rich"] = None  # pyright: ignore[reportArgumentType]
try:
    import structlog
finally:
    if _without_rich:
        del sys.modules["rich"]

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_REPEATS_PER_SECOND = 20

EventDict = MutableMapping[str, Any]


class StandardError:
    """The present ``sys.stderr``, looked up at each line: it may be replaced while we run."""

    def write(self, text: str) -> int:
        """Writes the text."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Flushes."""
        sys.stderr.flush()


class RepeatLimiter:
    """Lets so many equal warnings or errors through a second and counts the rest.

    The first line of a later second carries ``repeats_suppressed``.
    """

    def __init__(self, limit: int = _REPEATS_PER_SECOND) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, str], list[int]] = {}

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        if method not in ("warning", "error", "exception", "critical"):
            return event
        key = (str(event.get("logger", "")), str(event.get("event", "")))
        second = int(time.monotonic())
        with self._lock:
            window = self._windows.setdefault(key, [second, 0, 0])
            if window[0] != second:
                if window[2]:
                    event["repeats_suppressed"] = window[2]
                window[:] = [second, 0, 0]
            window[1] += 1
            if window[1] > self._limit:
                window[2] += 1
                raise structlog.DropEvent
        return event


def configure_logging(service: str, level: str = "info", console: bool = False) -> None:
    """Sets up this process's logging, that of third-party libraries included.

    Args:
        service: the ``service`` of each line.
        level: debug, info, warning or error.
        console: coloured lines for people in place of JSON.

    Raises:
        ValueError: unknown level.
    """
    if level not in LEVELS:
        raise ValueError(f"log level must be one of {', '.join(LEVELS)}, got {level!r}")

    def identify(logger: object, method: str, event: EventDict) -> EventDict:
        if "logger_name" in event:
            event["logger"] = event.pop("logger_name")
        event["service"] = service
        if not console:
            event["boot_id"] = BOOT_ID
        context = current()
        if context.request_id:
            event.setdefault("request_id", context.request_id)
        if context.traceparent:
            event.setdefault("trace_id", context.trace_id)
        return event

    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        identify,
    ]
    renderer: list[structlog.types.Processor]
    if console:
        # The default formatter prints local variables, which hold texts of users.
        plain = structlog.dev.plain_traceback
        renderer = [structlog.dev.ConsoleRenderer(timestamp_key="ts", exception_formatter=plain)]
    else:
        renderer = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_to_json),
        ]
    stderr = cast(TextIO, StandardError())
    structlog.configure(
        processors=[*shared, RepeatLimiter(), *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stderr),
        cache_logger_on_first_use=False,
    )
    _route_standard_logging(LEVELS[level], shared, renderer, stderr)


def get_logger(name: str) -> Any:
    """A logger: ``log.info("event_name", key=value)``. Safe to make before configuration."""
    return structlog.get_logger(logger_name=name)


def _route_standard_logging(
    level: int,
    shared: list[structlog.types.Processor],
    renderer: list[structlog.types.Processor],
    stderr: TextIO,
) -> None:
    """Third-party libraries log through the standard module; their lines look like ours."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING) if level != logging.DEBUG else logging.INFO)


def _to_json(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
