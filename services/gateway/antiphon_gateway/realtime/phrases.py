"""Acknowledgement phrases: a few cached words while a tool works."""

from __future__ import annotations

from antiphon_gateway.realtime import inputs, outputs, prompting
from antiphon_gateway.realtime.commands import CountFallback, PreparePhrase
from antiphon_gateway.realtime.config import SessionConfig
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.state import ActiveResponse, SessionState

MAX_PHRASES = 32
MAX_PHRASE_BYTES = 1024 * 1024


def check(config: SessionConfig) -> None:
    """Refuses more phrases than are kept ready.

    Raises:
        ProtocolError: naming the field.
    """
    count = len(_wanted(config))
    if count > MAX_PHRASES:
        raise ProtocolError(
            f"session.tools have {count} ack_phrases; at most {MAX_PHRASES} are kept ready",
            param="session.tools",
        )


def prepare(state: SessionState) -> None:
    """Has the audio of all phrases made in the present voice and format."""
    speech = prompting.speech_of(state.config)
    wanted = _wanted(state.config)
    if speech != state.phrase_speech:
        state.phrases.clear()
        state.phrase_speech = speech
    for text in [text for text in state.phrases if text not in wanted]:
        del state.phrases[text]
    for text in wanted:
        if text not in state.phrases:
            state.phrases[text] = b""
            state.commands.append(PreparePhrase(text, speech))


def ready(state: SessionState, made: inputs.PhraseReady) -> None:
    """Keeps the audio of a phrase."""
    is_wanted = made.speech == state.phrase_speech and made.text in state.phrases
    if is_wanted and len(made.data) <= MAX_PHRASE_BYTES:
        state.phrases[made.text] = made.data


def acknowledge(state: SessionState, response: ActiveResponse) -> None:
    """Says a phrase after the calls of a response, unless somebody speaks.

    It is ready or it is left out: the tool has started, and its result must find the response
    over.
    """
    called = {output.name for output in response.calls.values()}
    phrases = [
        phrase
        for tool in response.settings.tools
        if tool.name in called and tool.ack_phrases
        for phrase in tool.ack_phrases
    ]
    if not phrases or not response.speaks or not response.in_conversation:
        return
    if response.message is not None or state.turn is not None:
        return
    if prompting.speech_of(response.settings) != state.phrase_speech:
        return
    made = [phrase for phrase in phrases if state.phrases.get(phrase)]
    if not made:
        state.commands.append(CountFallback("ack_phrase", "not_ready"))
        return
    phrase = made[state.phrase_count % len(made)]
    state.phrase_count += 1
    outputs.say_phrase(state, response, phrase, state.phrases[phrase])


def _wanted(config: SessionConfig) -> list[str]:
    if config.output_modalities != ["audio"]:
        return []
    every = (phrase for tool in config.tools if tool.ack_phrases for phrase in tool.ack_phrases)
    return list(dict.fromkeys(every))
