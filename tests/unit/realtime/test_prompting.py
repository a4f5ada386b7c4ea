"""What prompts hold: persistent truncation, the client's bound, and summaries."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from antiphon_gateway.realtime import commands, inputs
from antiphon_gateway.realtime.errors import BackendFailure
from antiphon_gateway.realtime.settings import RealtimeSettings
from realtime_bench import Bench, kinds, message_texts

TOO_LONG = BackendFailure("invalid_request_error", "context_length_exceeded", "too long")


def ask(bench: Bench, text: str, *answer: str, tokens: int = 50, **response: Any) -> None:
    """A written question and, where given, its answer."""
    bench.say(text)
    bench.client("response.create", response={"output_modalities": ["text"], **response})
    bench.feed(inputs.PromptAccepted(bench.plan.response_id, tokens))
    if answer:
        bench.reply(*answer)


def texts(bench: Bench) -> list[str]:
    return [text for _, text in message_texts(bench.plan)]


def test_what_was_dropped_stays_dropped(bench: Bench) -> None:
    for number in range(6):
        ask(bench, f"question {number} " + "x" * 50, f"answer {number} " + "y" * 50)
    ask(bench, "now?")
    bench.feed(inputs.ReplyFailed(bench.plan.response_id, TOO_LONG, 100, 200))
    kept = texts(bench)[1]
    assert not kept.startswith("question 0")
    bench.reply("yes")
    ask(bench, "and now?")
    assert texts(bench)[1] == kept, "the next prompt begins with the same words"
    first = bench.state.history_start
    assert first is not None
    bench.client("response.cancel")
    bench.client("conversation.item.delete", item_id=first)
    ask(bench, "still?")
    assert texts(bench)[1] != kept and "question 0" not in " ".join(texts(bench))


def test_messages_of_the_system_are_never_dropped(bench: Bench) -> None:
    part = {"type": "input_text", "text": "You are a pirate."}
    item = {"type": "message", "role": "system", "content": [part]}
    bench.client("conversation.item.create", item=item)
    for number in range(6):
        ask(bench, f"question {number} " + "x" * 50, f"answer {number} " + "y" * 50)
    ask(bench, "now?")
    bench.feed(inputs.ReplyFailed(bench.plan.response_id, TOO_LONG, 100, 300))
    assert "You are a pirate." in texts(bench) and "question 0" not in " ".join(texts(bench))


def test_an_own_input_is_shortened_alone(bench: Bench) -> None:
    for number in range(4):
        ask(bench, f"question {number} " + "x" * 50, "yes")
    own = [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": f"{n} " + "z" * 40}],
        }
        for n in range(4)
    ]
    ask(bench, "go", input=own)
    bench.feed(inputs.ReplyFailed(bench.plan.response_id, TOO_LONG, 100, 200))
    assert bench.state.history_start is None
    assert len(texts(bench)[1].split("\n")) < 4


def test_the_clients_bound_cuts_in_large_steps(bench: Bench) -> None:
    limits = {"post_instructions": 200}
    ratio = {"type": "retention_ratio", "retention_ratio": 0.5, "token_limits": limits}
    bench.update(truncation=ratio)
    starts = []
    for number in range(24):
        ask(bench, f"question {number} " + "x" * 50, f"answer {number} " + "y" * 50, tokens=0)
        characters = sum(len(text) for text in texts(bench))
        bench.state.tokens_per_character = 0.25
        assert characters * 0.25 < 200 + 40
        starts.append(bench.state.history_start)
    changes = sum(before != after for before, after in pairwise(starts))
    assert 2 <= changes <= 8, "the prefix cache survives most turns"


def long_session(**settings: Any) -> Bench:
    bench = Bench(RealtimeSettings(instructions="Be brief.", **settings))
    bench.state.context_limit = 400
    return bench


def summaries(bench: Bench) -> list[commands.Summarize]:
    return [command for command in bench.commands if isinstance(command, commands.Summarize)]


def filled(bench: Bench) -> commands.Summarize:
    """A conversation that came near the model's limit."""
    for number in range(4):
        ask(bench, f"question {number} " + "x" * 50, f"answer {number} " + "y" * 50)
    assert not summaries(bench)
    bench.say("last question")
    bench.client("response.create", response={"output_modalities": ["text"]})
    response = bench.plan.response_id
    bench.feed(inputs.PromptAccepted(response, 350))
    bench.feed(inputs.TextProduced(response, "fine", 1))
    bench.feed(inputs.TextEnded(response, False, None))
    sent = bench.feed(inputs.ReplyEnded(response))
    assert kinds(sent)[-1] == "response.done"
    assert len(summaries(bench)) == 1
    return summaries(bench)[0]


def test_old_conversation_is_replaced_by_its_summary() -> None:
    bench = long_session()
    asked = filled(bench)
    assert "User: question 0" in str(asked.chat.messages[1].parts[0])
    assert "last question" not in str(asked.chat.messages[1].parts[0])
    ask(bench, "meanwhile")
    assert any("question 0" in text for text in texts(bench)), "nothing waits for the summary"
    assert bench.feed(inputs.Summarized(asked.number, " They talked. ")) == []
    bench.client("response.cancel")
    ask(bench, "then")
    assert texts(bench)[0] == "Be brief.\n\nEarlier in this conversation: They talked."
    joined = " ".join(texts(bench))
    assert "question 0" not in joined and "last question" in joined
    assert len(bench.state.conversation) > 9, "the client's items stay"


@pytest.mark.parametrize("change", ["delete", "insert", "truncate"])
def test_a_summary_of_what_has_changed_is_dropped(change: str) -> None:
    bench = long_session()
    bench.turn("count")
    bench.reply("One ", "two ", "three.", end=False)
    bench.play(0.6)
    bench.end()
    bench.now += 5
    spoken = next(entry.id for entry in bench.state.conversation if entry.playback)
    asked = filled(bench)
    if change == "delete":
        first = next(iter(bench.state.conversation)).id
        bench.client("conversation.item.delete", item_id=first)
    elif change == "insert":
        part = {"type": "input_text", "text": "before all"}
        item = {"type": "message", "role": "user", "content": [part]}
        bench.client("conversation.item.create", item=item, previous_item_id="root")
    else:
        place = {"content_index": 0, "audio_end_ms": 200}
        bench.client("conversation.item.truncate", item_id=spoken, **place)
    bench.feed(inputs.Summarized(asked.number, "They talked."))
    assert bench.state.summary.text == "" and bench.state.history_start is None
    assert commands.CountFallback("compaction", "conversation_changed") in bench.commands


def test_a_failed_summary_changes_nothing_and_another_is_tried() -> None:
    bench = long_session()
    asked = filled(bench)
    bench.feed(inputs.Summarized(asked.number, ""))
    assert bench.state.summary.text == ""
    ask(bench, "again", "yes", tokens=350)
    bench.reply("yes")
    assert bench.feed(inputs.Summarized(asked.number, "late")) == []
    assert bench.state.summary.text == ""


def test_a_share_of_zero_never_summarises() -> None:
    bench = long_session(compaction_share=0.0)
    with pytest.raises(AssertionError):
        filled(bench)


def test_summaries_work_inside_a_long_tool_loop() -> None:
    bench = long_session()
    bench.update(tools=[{"type": "function", "name": "look"}])
    bench.say("research this")
    for number in range(8):
        bench.client("response.create", response={"output_modalities": ["text"]})
        response = bench.plan.response_id
        bench.feed(inputs.PromptAccepted(response, 60 * number))
        call = f"call_{number}"
        bench.feed(inputs.CallProduced(response, 0, call, "look", '{"page": 1}', 5))
        bench.feed(inputs.TextEnded(response, False, None))
        bench.feed(inputs.ReplyEnded(response))
        output = {"type": "function_call_output", "call_id": call, "output": f"found {number} " * 5}
        bench.client("conversation.item.create", item=output)
        for asked in summaries(bench):
            bench.feed(inputs.Summarized(asked.number, "Pages were read."))
    assert len(summaries(bench)) >= 1
    assert bench.state.summary.text == "Pages were read."
    bench.client("response.create", response={"output_modalities": ["text"]})
    calls = [call.id for message in bench.plan.chat.messages for call in message.tool_calls]
    results = [m.tool_call_id for m in bench.plan.chat.messages if m.tool_call_id]
    assert calls == results and "call_0" not in calls and "call_7" in calls


def test_reasoning_effort_reaches_the_model(bench: Bench) -> None:
    bench.update(reasoning={"effort": "low"})
    ask(bench, "hi", "yes")
    assert bench.plan.chat.reasoning_effort == "low"
    ask(bench, "hi", reasoning={"effort": "high"})
    assert bench.plan.chat.reasoning_effort == "high"
