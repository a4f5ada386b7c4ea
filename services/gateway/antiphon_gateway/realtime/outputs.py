"""Output items of a response: opened, filled and closed in the wire's order."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from antiphon_gateway.realtime import (
    events,
    history,
    inputs,
    playing,
    response_object,
    response_params,
)
from antiphon_gateway.realtime.commands import AudioTag, ResponsePlan
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.formats import sample_bytes, sample_rate
from antiphon_gateway.realtime.items import (
    FunctionCallItem,
    MessageItem,
    OutputAudio,
    OutputText,
    Status,
)
from antiphon_gateway.realtime.playback import Playback
from antiphon_gateway.realtime.state import ActiveResponse, Output, SessionState

PHRASE_PIECE_SECONDS = 0.2


def describe(
    state: SessionState,
    response: ActiveResponse,
    status: Any,
    details: response_object.StatusDetails | None,
) -> response_object.Response:
    """The response object of response.created and response.done."""
    settings = response.settings
    return response_object.Response(
        id=response.id,
        status=status,
        status_details=details,
        output=[output.entry.item for output in response.outputs],
        conversation_id=state.conversation_id if response.in_conversation else None,
        output_modalities=list(settings.output_modalities),
        audio=response_params.audio_echo(settings),
        max_output_tokens=settings.max_output_tokens,
        metadata=response.metadata,
        usage=response.count_usage(),
    )


def add_text(state: SessionState, response: ActiveResponse, text: str) -> None:
    """Sends text of the reply as it comes."""
    if not text:
        return
    output = _message(state, response)
    output.pieces.append(text)
    kind = events.TranscriptDelta if response.speaks else events.TextDelta
    state.send(kind(**_place(response, output), delta=text))


def add_audio(
    state: SessionState, response: ActiveResponse, data: bytes, sample_count: int
) -> None:
    """Sends audio of the reply as it comes, marked so that an interruption can drop it."""
    output = _message(state, response)
    state.voice_fixed = True
    state.conversation.keep_audio(output.entry, data)
    rate = sample_rate(response.settings.audio.output.format)
    playing.sounds(state, response, output.entry, sample_count)
    tag = AudioTag(
        response_id=response.id,
        item_id=output.entry.id,
        lane=response.lane,
        generation=response.generation,
        sample_count=sample_count,
        byte_count=len(data),
        seconds=sample_count / rate,
    )
    state.send(events.AudioDelta(**_place(response, output), delta=data), tag)


def say_phrase(state: SessionState, response: ActiveResponse, text: str, audio: bytes) -> None:
    """Adds an item with a finished phrase, which the model does not know of."""
    output = _message(state, response)
    output.entry.in_prompt = False
    add_text(state, response, text)
    form = response.settings.audio.output.format
    width = sample_bytes(form)
    piece = max(width, int(sample_rate(form) * PHRASE_PIECE_SECONDS) * width)
    for start in range(0, len(audio), piece):
        data = audio[start : start + piece]
        add_audio(state, response, data, len(data) // width)
    assert output.entry.playback is not None
    output.entry.playback.mark(len(text), len(audio) // width)
    close_message(state, response, "completed")


def prompt_characters(plan: ResponsePlan) -> int:
    """Length of a prompt's text."""
    return history.characters(plan.chat.messages)


def add_call_piece(
    state: SessionState, response: ActiveResponse, report: inputs.CallProduced
) -> None:
    """Sends a piece of a tool call; the first piece opens its item and ends the one before."""
    output = response.calls.get(report.index)
    if output is None:
        close_calls(state, response, "completed")
        output = _open_call(state, response, report)
    if report.arguments and not output.done:
        output.pieces.append(report.arguments)
        state.send(
            events.ArgumentsDelta(
                response_id=response.id,
                item_id=output.entry.id,
                output_index=output.index,
                call_id=output.call_id,
                delta=report.arguments,
            )
        )


def close_calls(state: SessionState, response: ActiveResponse, status: Status) -> None:
    """Ends every open tool call; an incomplete one is not offered for execution."""
    for output in response.calls.values():
        if output.done:
            continue
        arguments = output.text
        if status == "completed":
            state.send(
                events.ArgumentsDone(
                    response_id=response.id,
                    item_id=output.entry.id,
                    output_index=output.index,
                    call_id=output.call_id,
                    name=output.name,
                    arguments=arguments,
                )
            )
        item = output.entry.item
        assert isinstance(item, FunctionCallItem)
        output.entry.item = replace(item, status=status, arguments=arguments)
        _close_item(state, response, output)


def close_message(state: SessionState, response: ActiveResponse, status: Status) -> None:
    """Ends the message of the reply, if there is one."""
    output = response.message
    if output is None or output.done:
        return
    text = output.text
    place = _place(response, output)
    if response.speaks:
        state.send(events.AudioDone(**place))
        state.send(events.TranscriptDone(**place, transcript=text))
        part: events.TextPart | events.AudioPart = events.AudioPart(transcript=text)
        content = OutputAudio(transcript=text)
    else:
        state.send(events.TextDone(**place, text=text))
        part = events.TextPart(text=text)
        content = OutputText(text=text)
    state.send(events.ContentPartDone(**place, part=part))
    item = output.entry.item
    assert isinstance(item, MessageItem)
    output.entry.item = replace(item, status=status, content=[content])
    _close_item(state, response, output)


def _message(state: SessionState, response: ActiveResponse) -> Output:
    if response.message is not None:
        return response.message
    entry = Entry(
        MessageItem(id=state.new_id("item"), status="in_progress", role="assistant", content=[])
    )
    if response.speaks:
        form = response.settings.audio.output.format
        entry.form = form
        entry.playback = Playback(sample_rate(form))
    output = Output(entry, index=len(response.outputs))
    response.message = output
    _open_item(state, response, output)
    part = events.AudioPart(transcript="") if response.speaks else events.TextPart(text="")
    state.send(events.ContentPartAdded(**_place(response, output), part=part))
    return output


def _open_call(
    state: SessionState, response: ActiveResponse, report: inputs.CallProduced
) -> Output:
    call_id = report.call_id or state.new_id("call")
    item = FunctionCallItem(
        id=state.new_id("item"),
        status="in_progress",
        call_id=call_id,
        name=report.name,
        arguments="",
    )
    output = Output(Entry(item), index=len(response.outputs), call_id=call_id, name=report.name)
    response.calls[report.index] = output
    _open_item(state, response, output)
    return output


def _open_item(state: SessionState, response: ActiveResponse, output: Output) -> None:
    response.outputs.append(output)
    item = output.entry.item
    state.send(
        events.OutputItemAdded(response_id=response.id, output_index=output.index, item=item)
    )
    if response.in_conversation:
        previous = state.conversation.insert(output.entry, None)
        state.announce(previous, item)


def _close_item(state: SessionState, response: ActiveResponse, output: Output) -> None:
    output.done = True
    item = output.entry.item
    if response.in_conversation and output.entry.id in state.conversation:
        previous = state.conversation.previous_of(output.entry.id)
        state.send(events.ItemDone(previous_item_id=previous, item=item))
    state.send(events.OutputItemDone(response_id=response.id, output_index=output.index, item=item))


def _place(response: ActiveResponse, output: Output) -> dict[str, Any]:
    return {
        "response_id": response.id,
        "item_id": output.entry.id,
        "output_index": output.index,
    }
