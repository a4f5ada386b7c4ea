"""The real stack answers requests made of its OpenAPI document as the document says."""

from __future__ import annotations

import pytest
from schemathesis import GenerationMode
from support.openapi_cases import Cases
from support.suite import RunningSuite

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1800)]

CASES = 1_000
"""Of each kind."""
SENSIBLE = {
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "input": "Hi.",
    "tokens": [72, 105],
    "max_tokens": 4,
    "max_completion_tokens": 4,
    "max_output_tokens": 16,
    "n": 1,
}
BOUNDS = {
    "/v1/chat/completions": {"max_completion_tokens": 64},
    "/v1/completions": {"max_tokens": 64},
    "/v1/responses": {"max_output_tokens": 64},
}
"""Without them some samplings take the small model to the end of its context, for minutes."""


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_answer_is_undocumented(suite: RunningSuite, mode: GenerationMode) -> None:
    cases = Cases(suite.url, SENSIBLE, BOUNDS)
    cases.ask(mode, CASES)
    assert cases.statuses.total() >= CASES
    assert cases.streamed_events or mode is GenerationMode.NEGATIVE
    suite.wait_ready(10)
