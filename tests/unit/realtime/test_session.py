"""Opening, configuration, errors, ids and bounds of a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from antiphon_gateway.domain.recognition import Recognizer
from antiphon_gateway.realtime import admission, commands, inputs
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.realtime.state import Served
from realtime_bench import Bench, kinds


def test_a_session_opens_with_its_full_effective_configuration(bench: Bench) -> None:
    assert kinds(bench.events) == ["session.created", "conversation.created"]
    session = bench.events[0]["session"]
    assert session == {
        "type": "realtime",
        "object": "realtime.session",
        "id": bench.state.session_id,
        "model": "small",
        "expires_at": 1_800_003_600,
        "instructions": "Be brief.",
        "output_modalities": ["audio"],
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": {
                    "language": None,
                    "prompt": None,
                },
                "noise_reduction": None,
                "turn_detection": {
                    "type": "server_vad",
                    "threshold": 0.5,
                    "prefix_padding_ms": 300,
                    "silence_duration_ms": 500,
                    "idle_timeout_ms": None,
                    "create_response": True,
                    "interrupt_response": True,
                },
            },
            "output": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "voice": None,
                "speed": 1.0,
            },
        },
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_output_tokens": 120,
        "truncation": "auto",
        "temperature": None,
        "include": None,
        "reasoning": None,
        "prompt": None,
        "tracing": None,
        "speculative_ms": None,
        "audio_lead_ms": 10_000,
        "optional_events": [],
    }


def test_a_merge_is_deep_and_null_clears(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": {"silence_duration_ms": 900}}})
    session = bench.update(
        instructions="New.", audio={"input": {"transcription": {"language": "de"}}}
    )[0]["session"]
    detection = session["audio"]["input"]["turn_detection"]
    assert (detection["silence_duration_ms"], detection["threshold"]) == (900, 0.5)
    assert session["audio"]["input"]["transcription"]["language"] == "de"
    session = bench.update(
        instructions=None,
        audio={"input": {"turn_detection": None, "transcription": None}},
    )[0]["session"]
    assert session["instructions"] == "Be brief."
    assert session["audio"]["input"]["turn_detection"] is None
    assert session["audio"]["input"]["transcription"] is None
    session = bench.update(audio={"input": {"turn_detection": {"type": "semantic_vad"}}})[0][
        "session"
    ]
    assert session["audio"]["input"]["turn_detection"] == {
        "type": "semantic_vad",
        "eagerness": "auto",
        "create_response": True,
        "interrupt_response": True,
    }


def test_fields_without_effect_are_accepted_and_echoed_null(bench: Bench) -> None:
    session = bench.update(
        audio={
            "input": {
                "noise_reduction": {"type": "near_field", "strength": 0.5},
                "transcription": {"delay": "low", "keywords": ["Antiphon"]},
            }
        },
        reasoning={"effort": "low"},
        prompt={"id": "pmpt_1"},
        tracing="auto",
        include=["item.input_audio_transcription.logprobs"],
    )[0]["session"]
    assert session["audio"]["input"]["noise_reduction"] is None
    assert session["audio"]["input"]["transcription"].get("delay") is None
    assert session["audio"]["input"]["transcription"]["keywords"] == ["Antiphon"]
    assert session["tracing"] is session["prompt"] is None
    assert session["reasoning"] == {"effort": "low"}
    assert session["include"] == ["item.input_audio_transcription.logprobs"]


def test_an_echoed_session_can_be_sent_back(bench: Bench) -> None:
    echoed = bench.events[0]["session"]
    assert bench.client("session.update", session=echoed)[0]["session"] == echoed


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"audio": {"input": {"turn_detection": {"threshold": 1.5}}}},
         "session.audio.input.turn_detection.threshold"),
        ({"audio": {"input": {"turn_detection": {"type": "psychic"}}}},
         "session.audio.input.turn_detection.type"),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 11025}}}},
         "session.audio.input.format"),
        ({"audio": {"output": {"speed": 3}}}, "session.audio.output.speed"),
        ({"max_output_tokens": 0}, "session.max_output_tokens"),
        ({"max_output_tokens": "many"}, "session.max_output_tokens"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "session.tool_choice"),
        ({"tools": [{"type": "function"}]}, "session.tools[0].name"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "session.tools[0].type"),
        ({"model": "other"}, "session.model"),
        ({"type": "duet"}, "session.type"),
        ({"speculative_ms": 50}, "session.speculative_ms"),
        ({"audio_lead_ms": 10}, "session.audio_lead_ms"),
        ({"optional_events": ["response.done"]}, "session.optional_events[0]"),
        ({"reasoning": {"effort": "huge"}}, "session.reasoning.effort"),
        ({"audio": {"input": {"turn_detection": {"idle_timeout_ms": 1}}}},
         "session.audio.input.turn_detection.idle_timeout_ms"),
        ({"unheard": 1}, "session.unheard"),
        ({"temperature": -1}, "session.temperature"),
    ],
)  # fmt: skip
def test_one_bad_value_changes_nothing(bench: Bench, change: dict, param: str) -> None:
    before = bench.state.config
    sent = bench.client(
        "session.update",
        event_id="mine",
        session={"type": "realtime", "instructions": "Changed.", **change},
    )
    assert kinds(sent) == ["error"]
    assert (sent[0]["error"]["param"], sent[0]["error"]["event_id"]) == (param, "mine")
    assert bench.state.config == before


def test_unknown_recognisers_are_refused() -> None:
    bench = Bench(served=Served(recognizers=frozenset({"whisper-1"})))
    sent = bench.update(audio={"input": {"transcription": {"model": "elsewhere"}}})
    assert sent[0]["error"]["code"] == "model_not_found"
    assert kinds(bench.update(audio={"input": {"transcription": {"model": "whisper-1"}}})) == [
        "session.updated"
    ]


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_json", None),
        ("{}", "missing_required_parameter", "type"),
        ('{"type":"nonsense","event_id":"e"}', "invalid_value", "type"),
        ('{"type":"input_audio_buffer.append"}', "missing_required_parameter", "audio"),
        ('{"type":"input_audio_buffer.append","audio":"%%"}', "invalid_value", "audio"),
        (
            '{"type":"conversation.item.truncate","item_id":"i","content_index":0,'
            '"audio_end_ms":-1}',
            "invalid_value",
            "audio_end_ms",
        ),
        (
            '{"type":"conversation.item.create","item":{"type":"message","role":"user"}}',
            "missing_required_parameter",
            "item.content",
        ),
    ],
)
def test_bad_frames_get_an_error_and_the_session_lives(
    bench: Bench, frame: str, code: str, param: str | None
) -> None:
    from antiphon_gateway.realtime import codec

    with pytest.raises(codec.InvalidEvent) as invalid:
        codec.decode(frame)
    sent = bench.feed(inputs.BadFrame(invalid.value.error, invalid.value.event_id))
    assert (sent[0]["error"]["code"], sent[0]["error"]["param"]) == (code, param)
    assert kinds(bench.update(instructions="Still here.")) == ["session.updated"]


def test_event_ids_are_unique_and_increase(bench: Bench) -> None:
    bench.turn()
    bench.reply("Yes.")
    ids = [event["event_id"] for event in bench.events]
    assert ids == sorted(set(ids))


def test_a_session_expires_and_an_idle_one_is_closed() -> None:
    bench = Bench(RealtimeSettings(max_session_seconds=100, input_idle_seconds=60))
    bench.now += 59
    assert bench.feed(inputs.Tick()) == []
    bench.append(0.1)
    bench.now += 41
    assert bench.feed(inputs.Tick())[0]["error"]["code"] == "session_expired"
    assert isinstance(bench.commands[-1], commands.Close)
    idle = Bench(RealtimeSettings(input_idle_seconds=60))
    idle.now += 60
    idle.feed(inputs.Tick())
    assert idle.commands[-1] == commands.Close(1000, "no input")


def test_telephone_audio_in_each_direction(bench: Bench) -> None:
    bench.update(
        audio={
            "input": {"format": {"type": "audio/pcmu"}},
            "output": {"format": {"type": "audio/pcma"}},
        }
    )
    import base64

    audio = base64.b64encode(bytes(8000)).decode()
    bench.client("input_audio_buffer.append", audio=audio)
    opened = [c for c in bench.commands if isinstance(c, commands.OpenRecognizer)][-1]
    assert opened.config.format is not None
    assert (opened.config.format.encoding, opened.config.format.sample_rate) == ("pcmu", 8000)
    assert bench.state.buffer.held_ms == 1000
    bench.say("hi")
    bench.client("response.create")
    assert bench.plan.output_format.encoding == "pcma"
    assert bench.plan.speech and bench.plan.speech.output_format == bench.plan.output_format


def test_positions_go_on_over_a_change_of_format(bench: Bench) -> None:
    bench.append(2)
    bench.update(audio={"input": {"format": {"type": "audio/pcmu"}}})
    assert bench.state.buffer.end_ms == 2000 and len(bench.state.buffer) == 0
    bench.append(0.1)
    started = bench.start_speech(at_ms=100)
    assert started[0]["audio_start_ms"] == 2100


def test_names_of_recognisers_that_do_not_say_who_speaks_are_known() -> None:
    recognizers = (
        Recognizer("tiny", (), False, aliases=("whisper-1",)),
        Recognizer("big", (), False, aliases=("large",), diarizes=True),
    )
    backends: Any = SimpleNamespace(
        voices=(),
        vocoder=SimpleNamespace(voice_aliases={}),
        recognizers=recognizers,
        recognition=SimpleNamespace(model_aliases={"gpt-4o-transcribe": "", "other": "big"}),
    )
    known = admission.served(backends)
    assert known.undiarized == {"", "tiny", "whisper-1", "gpt-4o-transcribe"}
    assert known.recognizers == (known.undiarized - {""}) | {"big", "large", "other"}
