"""What the reader of a request hears when its engine is faster than the reader."""

from __future__ import annotations

import pytest
from antiphon_llm.front.events import Accepted, Delta
from antiphon_llm.front.generation import Generation, Prepared
from antiphon_llm.front.requests import GenerationRequest, RequestScope
from antiphon_llm.front.tokenizer import Tokenizer
from antiphon_llm.messages import Finish, Sampling

PROMPT = [5, 6]


class EndedSequences:
    """A host whose engine is the test itself."""

    def open(self, generation: Generation) -> None:
        """Nothing to submit to."""

    def end(self, generation: Generation, choices: object) -> None:
        """Nothing to cancel."""


def generation(tokenizer: Tokenizer, choices: int = 1) -> Generation:
    prepared = Prepared(
        request=GenerationRequest(input=PROMPT, choice_count=choices),
        scope=RequestScope(request_id="r", deadline=0.0),
        model="m",
        fingerprint="f",
        prompt_ids=PROMPT,
        sampling=Sampling(max_tokens=8),
    )
    return Generation(prepared, tokenizer, EndedSequences(), on_end=lambda ended: None)


def failed(reason: str = "BAD_LOGITS") -> Finish:
    return Finish("r", "error", "it failed", reason)


def draw(one: Generation, tokenizer: Tokenizer, count: int, choice: int = 0) -> None:
    for token_id in tokenizer.encode(" one two three four")[:count]:
        one.on_token(choice, token_id, -0.5, None, ends=False)


@pytest.mark.parametrize("reason", ["error", "deadline"])
def test_text_that_came_with_the_failure_is_heard(smollm: Tokenizer, reason: str) -> None:
    one = generation(smollm)
    one.on_admitted(0, 0)
    draw(one, smollm, 3)
    one.on_finish(0, failed() if reason == "error" else Finish("r", reason))
    events = one.collect()
    assert [type(event) for event in events] == [Accepted, Delta]
    assert one.error is not None and one.done
    assert one.collect() == []


def test_a_failure_before_the_first_text_is_the_only_answer(smollm: Tokenizer) -> None:
    one = generation(smollm)
    one.on_admitted(0, 0)
    one.on_finish(0, failed())
    assert one.collect() == []
    assert one.error is not None


def test_a_refused_choice_refuses_what_its_sibling_began(smollm: Tokenizer) -> None:
    """A caller may repeat it elsewhere: it heard nothing yet."""
    both = generation(smollm, choices=2)
    both.on_admitted(0, 0)
    draw(both, smollm, 1)
    both.on_finish(1, failed("QUEUE_FULL"))
    assert both.collect() == []
    assert both.error is not None
