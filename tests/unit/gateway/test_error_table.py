"""The error table is complete and says when a retry makes sense."""

from __future__ import annotations

import msgspec
import pytest
from antiphon.common.v1 import error_pb2
from antiphon_core.errors import AntiphonError, ResourceExhausted, Unavailable
from antiphon_gateway.openai.errors import ERROR_TABLE, error_body, error_headers, row_of

REASONS = [
    name.removeprefix("ERROR_REASON_")
    for name, number in error_pb2.ErrorReason.items()
    if number != 0
]
CODES = {
    400: {
        "invalid_json",
        "invalid_value",
        "missing_required_parameter",
        "unsupported_parameter",
        "unsupported_modality",
        "context_length_exceeded",
        "invalid_image",
        "invalid_audio",
        "invalid_schema",
        "template_error",
        "voice_not_found",
    },
    401: {"invalid_api_key"},
    403: {"insufficient_scope"},
    404: {"model_not_found", "not_found"},
    405: {"method_not_allowed"},
    408: {"request_timeout"},
    409: {"conflict", "idempotency_mismatch"},
    413: {"request_too_large"},
    415: {"unsupported_media_type"},
    429: {"rate_limit_exceeded", "capacity_exceeded", "insufficient_quota"},
    431: {"request_too_large"},
    500: {"internal_error"},
    502: {"bad_gateway"},
    503: {"starting", "draining", "no_backend", "overloaded"},
    504: {"deadline_exceeded"},
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_a_row(reason: str) -> None:
    assert reason in ERROR_TABLE


def test_codes_are_those_of_the_specification() -> None:
    for reason, row in ERROR_TABLE.items():
        assert row.code in CODES[row.status], reason


def test_an_unknown_reason_is_an_internal_error() -> None:
    assert row_of(AntiphonError("x", reason="FROM_THE_FUTURE")).status == 500


@pytest.mark.parametrize("reason", [r for r in ERROR_TABLE if ERROR_TABLE[r].status in (429, 503)])
def test_waiting_is_told_in_seconds_and_milliseconds(reason: str) -> None:
    headers = dict(error_headers(ResourceExhausted("x", reason=reason, retry_after=1.25)))
    if ERROR_TABLE[reason].retry is False:
        assert headers == {b"x-should-retry": b"false"}
    else:
        assert headers[b"retry-after"] == b"2"
        assert headers[b"retry-after-ms"] == b"1250"


def test_waiting_has_a_default() -> None:
    headers = dict(error_headers(Unavailable("x", reason="NO_BACKEND")))
    assert headers[b"retry-after"] == b"1"


@pytest.mark.parametrize("reason", ["ALREADY_EXISTS", "IN_USE", "WRONG_STATE", "QUOTA_SPENT"])
def test_permanent_refusals_stop_the_sdk(reason: str) -> None:
    assert (b"x-should-retry", b"false") in error_headers(AntiphonError("x", reason=reason))


@pytest.mark.parametrize("reason", ERROR_TABLE)
def test_the_edge_retries_only_what_never_began(reason: str) -> None:
    marked = (b"x-antiphon-not-started", b"1") in error_headers(AntiphonError("x", reason=reason))
    assert marked == (ERROR_TABLE[reason].code in ("starting", "draining", "no_backend"))


def test_body_shape() -> None:
    error = AntiphonError("no", reason="INVALID_VALUE", field="messages[2].content[0]")
    assert msgspec.json.decode(error_body(error)) == {
        "error": {
            "message": "no",
            "type": "invalid_request_error",
            "param": "messages[2].content[0]",
            "code": "invalid_value",
        }
    }
