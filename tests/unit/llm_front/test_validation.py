"""Every field's range, with the field's path in the error."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from antiphon_core.errors import FailedPrecondition, InvalidArgument
from antiphon_llm.front import validation
from antiphon_llm.front.constraints import ConstraintOptions
from antiphon_llm.front.conversation import Conversation, Message
from antiphon_llm.front.generation_config import SamplingDefaults, from_gguf
from antiphon_llm.front.requests import (
    ChatInput,
    GenerationRequest,
    OutputOptions,
    SamplingOptions,
    StopOptions,
)
from antiphon_llm.front.sampling_rules import reasoning_defaults, resolve_sampling
from antiphon_llm.front.tools import Tool, ToolOptions

GOOD = GenerationRequest(input="hello")
VOCABULARY = 100


def refused(request: GenerationRequest, draft_depth: int = 0) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        validation.check_request(request, vocabulary_size=VOCABULARY, draft_depth=draft_depth)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 0.0001),
        ("temperature", 100.5),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("min_p", math.inf),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 11),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("min_tokens", -1),
        ("draft_depth", 2),
        ("no_repeat_ngram_size", 65),
        ("no_repeat_ngram_size", -1),
        ("no_repeat_ngram_window", -1),
        ("no_repeat_ngram_window", 5),
        ("seed", 2**63),
    ],
)
def test_sampling_out_of_range_is_refused_by_path(name: str, value: float) -> None:
    error = refused(replace(GOOD, sampling=SamplingOptions(**{name: value})))
    assert error.field == f"sampling.{name}"
    assert "allowed" in error.message or error.reason == "UNSUPPORTED_OPTION"


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.001},
        {"temperature": 100.0},
        {"top_p": 0.0},
        {"repetition_penalty": 0.01},
        {"presence_penalty": -2.0},
        {"logit_bias": {0: -100.0, 99: 100.0}},
        {"draft_depth": 0},
        {"seed": -(2**63)},
        {"allowed_token_ids": (0, 99), "banned_token_ids": (99,)},
        {"no_repeat_ngram_size": 64, "no_repeat_ngram_window": 64},
    ],
)
def test_the_edges_of_the_ranges_are_served(options: dict) -> None:
    validation.check_request(
        replace(GOOD, sampling=SamplingOptions(**options)), vocabulary_size=VOCABULARY
    )


def test_logit_bias() -> None:
    def with_bias(bias: dict) -> GenerationRequest:
        return replace(GOOD, sampling=SamplingOptions(logit_bias=bias))

    assert refused(with_bias({100: 1.0})).field == "sampling.logit_bias[100]"
    assert refused(with_bias({-1: 1.0})).field == "sampling.logit_bias[-1]"
    assert refused(with_bias({5: 101.0})).field == "sampling.logit_bias[5]"
    assert refused(with_bias({5: math.nan})).field == "sampling.logit_bias[5]"
    assert refused(with_bias(dict.fromkeys(range(1025), 1.0))).metadata["limit"] == "1024"


def test_reasoning_has_defaults_of_its_own() -> None:
    own = SamplingDefaults(temperature=0.7, top_p=0.8)
    assert reasoning_defaults(own, {}) == own
    changed = reasoning_defaults(own, {"temperature": 0.6, "top_k": 20.0})
    assert changed == SamplingDefaults(temperature=0.6, top_p=0.8, top_k=20)
    for values, word in (
        ({"heat": 1.0}, "heat"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 2.5}, "top_k"),
    ):
        with pytest.raises(FailedPrecondition, match=word) as caught:
            reasoning_defaults(own, values)
        assert caught.value.field == "reasoning_sampling"


def test_draft_depth_reaches_the_boot_s_and_no_further() -> None:
    def with_depth(depth: int) -> GenerationRequest:
        return replace(GOOD, sampling=SamplingOptions(draft_depth=depth))

    validation.check_request(with_depth(3), vocabulary_size=VOCABULARY, draft_depth=3)
    above = refused(with_depth(4), draft_depth=3)
    assert (above.field, above.reason) == ("sampling.draft_depth", "INVALID_VALUE")
    assert above.metadata["allowed"] == "0 to 3"
    assert refused(with_depth(1)).reason == "UNSUPPORTED_OPTION"
    assert refused(with_depth(-1), draft_depth=3).field == "sampling.draft_depth"


def test_allowed_and_banned_ids() -> None:
    def with_ids(**ids: tuple[int, ...]) -> GenerationRequest:
        return replace(GOOD, sampling=SamplingOptions(**ids))

    for name in ("allowed_token_ids", "banned_token_ids"):
        assert refused(with_ids(**{name: (5, 100)})).field == f"sampling.{name}[1]"
        assert refused(with_ids(**{name: (-1,)})).field == f"sampling.{name}[0]"
    nothing_left = with_ids(allowed_token_ids=(4, 5), banned_token_ids=(5, 4))
    assert refused(nothing_left).field == "sampling.banned_token_ids"
    everything = with_ids(banned_token_ids=tuple(range(VOCABULARY)))
    assert refused(everything).field == "sampling.banned_token_ids"


def test_an_ngram_window_holds_at_least_one_sequence() -> None:
    sampling = SamplingOptions(no_repeat_ngram_size=4, no_repeat_ngram_window=3)
    assert refused(replace(GOOD, sampling=sampling)).field == "sampling.no_repeat_ngram_window"


def test_stop_rules() -> None:
    assert refused(replace(GOOD, stop=StopOptions(max_tokens=0))).field == "stop.max_tokens"
    assert refused(replace(GOOD, stop=StopOptions(strings=("",)))).field == "stop.strings[0]"
    long = replace(GOOD, stop=StopOptions(strings=("a", "é" * 129)))
    assert refused(long).metadata == {
        "field": "stop.strings[1]",
        "limit": "256",
        "observed": "258",
    }
    assert refused(replace(GOOD, stop=StopOptions(strings=("x",) * 17))).field == "stop.strings"
    assert refused(replace(GOOD, stop=StopOptions(token_ids=(100,)))).field == "stop.token_ids[0]"
    assert refused(replace(GOOD, stop=StopOptions(token_ids=(1,) * 65))).field == "stop.token_ids"


def test_min_tokens_above_max_tokens() -> None:
    request = replace(GOOD, sampling=SamplingOptions(min_tokens=5), stop=StopOptions(max_tokens=4))
    assert refused(request).field == "sampling.min_tokens"


def test_outputs_and_constraints() -> None:
    assert refused(replace(GOOD, choice_count=17)).field == "choice_count"
    assert refused(replace(GOOD, output=OutputOptions(logprobs=21))).field == "output.logprobs"
    audio = refused(replace(GOOD, output=OutputOptions(modalities=("audio",))))
    assert (audio.reason, audio.field) == ("UNSUPPORTED_MODALITY", "output.modalities[0]")
    constrained = replace(GOOD, constraint=ConstraintOptions("json_object"))
    validation.check_request(constrained, vocabulary_size=VOCABULARY)
    endless = replace(constrained, stop=StopOptions(ignore_eos=True))
    assert refused(endless).field == "stop.ignore_eos"


def test_prompts() -> None:
    assert refused(replace(GOOD, input="")).reason == "EMPTY_PROMPT"
    assert refused(replace(GOOD, input=[])).reason == "EMPTY_PROMPT"
    assert refused(replace(GOOD, input=[1, 100])).field == "tokens.ids[1]"
    assert refused(replace(GOOD, input=[-1])).field == "tokens.ids[0]"
    empty = ChatInput(Conversation([]))
    assert refused(replace(GOOD, input=empty)).field == "chat.messages"


def chat(message: Message, **options: object) -> GenerationRequest:
    return replace(GOOD, input=ChatInput(Conversation([message]), **options))  # type: ignore[arg-type]


def test_chat_messages() -> None:
    assert refused(chat(Message("", ("x",)))).field == "chat.messages[0].role"
    assert refused(chat(Message("tool", ("x",)))).field == "chat.messages[0].tool_call_id"
    assert refused(chat(Message("user", ("x",), name="n" * 65))).field == "chat.messages[0].name"
    user = Message("user", ("x",))
    assert refused(chat(user, thinking_budget=-1)).field == "chat.thinking_budget"
    unnamed = ToolOptions([Tool("")], "auto")
    assert refused(chat(user, tools=unnamed)).field == "chat.tools[0].name"
    continued = Conversation([user], continue_final_message=True)
    request = replace(GOOD, input=ChatInput(continued))
    assert refused(request).field == "chat.continue_final_message"


def test_context_length() -> None:
    validation.check_length(10, 6, 16)
    for prompt, asked, field in ((10, 7, "stop.max_tokens"), (16, None, "input")):
        with pytest.raises(InvalidArgument) as caught:
            validation.check_length(prompt, asked, 16)
        assert caught.value.reason == "CONTEXT_LENGTH_EXCEEDED"
        assert caught.value.field == field
        assert caught.value.metadata["limit"] == "16"
        assert caught.value.metadata["observed"] == "17"


def test_omitted_fields_come_from_the_model() -> None:
    published = {"temperature": 0.2, "top_p": 0.9}
    assert from_gguf({}, published) == SamplingDefaults(temperature=0.2, top_p=0.9)
    assert from_gguf({"general.sampling.temp": 0.6}, published).temperature == 0.6
    defaults = from_gguf({"general.sampling.temp": 0.6, "general.sampling.top_k": 20.0})
    assert defaults == SamplingDefaults(temperature=0.6, top_k=20)
    request = replace(GOOD, sampling=SamplingOptions(temperature=0.0))
    resolved = resolve_sampling(request, defaults, context_limit=64, max_output=0)
    assert (resolved.temperature, resolved.top_k, resolved.max_tokens) == (0.0, 20, 64)
    bounded = resolve_sampling(request, defaults, context_limit=64, max_output=8)
    assert bounded.max_tokens == 8


def test_a_seed_is_kept_and_a_missing_one_is_drawn() -> None:
    defaults = SamplingDefaults()

    def seed(asked: int | None) -> int:
        request = replace(GOOD, sampling=SamplingOptions(seed=asked))
        return resolve_sampling(request, defaults, context_limit=64, max_output=0).seed

    assert seed(-7) == -7
    assert seed(None) != seed(None)
