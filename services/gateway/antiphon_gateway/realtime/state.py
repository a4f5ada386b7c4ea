"""The state of one session and the few things that every part of the reducer does with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon_gateway.domain.generation import Usage
from antiphon_gateway.domain.recognition import TranscriptSegment
from antiphon_gateway.domain.speech import SpeechConfig
from antiphon_gateway.realtime import events, response_object
from antiphon_gateway.realtime.commands import AudioTag, Command, ResponsePlan, Send
from antiphon_gateway.realtime.config import SessionConfig
from antiphon_gateway.realtime.conversation import Conversation, Entry
from antiphon_gateway.realtime.errors import REQUEST_ERROR, ProtocolError
from antiphon_gateway.realtime.input_audio import InputBuffer
from antiphon_gateway.realtime.inputs import Report
from antiphon_gateway.realtime.items import Item
from antiphon_gateway.realtime.settings import RealtimeSettings


@dataclass(frozen=True, slots=True)
class Served:
    """Names that a configuration may use; an empty set allows any name."""

    voices: frozenset[str] = frozenset()
    recognizers: frozenset[str] = frozenset()
    undiarized: frozenset[str] = frozenset()
    """Those recognisers that do not say who speaks; the empty name is the default one."""
    own_names: frozenset[str] = frozenset()
    """Further names of the session's language model, which a configuration may repeat."""


@dataclass(slots=True)
class OpenTurn:
    """A turn between speech_started and speech_stopped."""

    item_id: str
    start_ms: int
    pieces: list[str] = field(default_factory=list)
    """Transcripts of utterances that are over: by a forced cut, or by a pause."""
    ended_utterances: set[int] = field(default_factory=set)
    logprobs: list[events.Logprob] = field(default_factory=list)
    segments: list[TranscriptSegment] = field(default_factory=list)
    """Of these transcripts; times of the session."""
    stable: str = ""
    """Leading text of the present utterance that will not be revised."""
    paused_at_ms: int | None = None
    """Where a silence began that may end the turn; the utterance before it is over."""
    paused_utterance: int = -1
    ends_at: float = 0.0
    """When the silence has been long enough."""
    speculations: int = 0


@dataclass(slots=True)
class PendingTranscript:
    """A committed item whose transcript has not come."""

    pieces: list[str]
    live: bool = True
    """Whether it comes from the live stream rather than from recognising the item alone."""
    logprobs: list[events.Logprob] = field(default_factory=list)
    segments: list[TranscriptSegment] = field(default_factory=list)
    """Of the pieces; times of the session, or of the item where it is recognised alone."""
    start_ms: int = 0
    """Where the item begins on that clock."""
    shown: str = ""
    """Text that went out in deltas."""


@dataclass(slots=True)
class Output:
    """One output item of a response while it is produced."""

    entry: Entry
    index: int
    pieces: list[str] = field(default_factory=list)
    """Text, transcript or arguments so far."""
    call_id: str = ""
    name: str = ""
    done: bool = False

    @property
    def text(self) -> str:
        """Everything produced so far."""
        return "".join(self.pieces)


@dataclass(slots=True)
class ActiveResponse:
    """A response between response.created and response.done."""

    id: str
    lane: str
    generation: int
    settings: SessionConfig
    """Snapshot of the configuration with the response's own overrides."""
    in_conversation: bool
    history: list[Entry]
    metadata: dict[str, str] | None
    awaits: set[str]
    """Items whose transcripts the prompt needs."""
    automatic: bool
    """Created by turn detection rather than by the client."""
    trigger: str | None = None
    """The user item that an automatic response answers."""
    own_input: bool = False
    """It reads its own input instead of the conversation."""
    started: bool = False
    outputs: list[Output] = field(default_factory=list)
    message: Output | None = None
    calls: dict[int, Output] = field(default_factory=dict)
    cut: bool = False
    muted: bool = False
    """The client cleared its output audio: what comes later is not sent."""
    prompt_characters: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    usage: Usage | None = None

    @property
    def speaks(self) -> bool:
        """Whether the reply is spoken."""
        return self.settings.output_modalities == ["audio"]

    def count_usage(self) -> response_object.Usage:
        """The usage so far; complete also for a response that was cut short."""
        prompt, cached, output = self.prompt_tokens, 0, self.output_tokens
        audio = 0
        if self.usage is not None:
            prompt, cached = self.usage.prompt_tokens, self.usage.cached_tokens
            output, audio = self.usage.output_tokens, self.usage.audio_tokens or 0
        return response_object.Usage(
            total_tokens=prompt + output,
            input_tokens=prompt,
            output_tokens=output,
            input_token_details=response_object.InputTokens(
                text_tokens=prompt,
                cached_tokens=cached,
                cached_tokens_details=response_object.CachedTokens(text_tokens=cached),
            ),
            output_token_details=response_object.OutputTokens(
                text_tokens=output - audio, audio_tokens=audio
            ),
        )


@dataclass(slots=True)
class Speculation:
    """A reply that is prepared while the turn may still go on; nothing of it is visible."""

    plan: ResponsePlan
    reports: list[Report] = field(default_factory=list)
    """What the backends said so far, in order."""
    token_count: int = 0


@dataclass(slots=True)
class Summary:
    """What stands in prompts for conversation before ``SessionState.history_start``."""

    text: str = ""
    wanted: int = 0
    """Number of the summary that is being made; 0 when none is."""
    made: int = 0
    """Summaries asked for so far."""
    covered: list[str] = field(default_factory=list)
    """Items that the wanted one stands for."""
    head: tuple[object, ...] = ()
    """Those items as they were, to see whether they still are when it comes."""


@dataclass(slots=True)
class SessionState:
    """Everything that one session knows. Only the reducer changes it."""

    token: str
    """Random part of all ids of this session."""
    defaults: SessionConfig
    config: SessionConfig
    limits: RealtimeSettings
    served: Served
    expires_at: int
    """Wall-clock second at which the session ends, for the client."""
    context_limit: int = 0
    """Tokens of the model's context; 0 where unknown."""
    load: float = 0.0
    """Busiest share of what the backends can do at once, 0 to 1."""
    now: float = 0.0
    opened_at: float = 0.0
    last_client_event_at: float = 0.0
    id_count: int = 0
    event_count: int = 0
    generation_count: int = 0
    conversation: Conversation = field(default_factory=Conversation)
    buffer: InputBuffer = field(init=False)
    turn: OpenTurn | None = None
    utterances: dict[int, str] = field(default_factory=dict)
    """Item of each utterance of the present recogniser stream that is not over."""
    pending: dict[str, PendingTranscript] = field(default_factory=dict)
    loose_pieces: list[str] = field(default_factory=list)
    """Transcripts of forced cuts of audio that is not committed."""
    loose_segments: list[TranscriptSegment] = field(default_factory=list)
    """Of these transcripts; times of the session."""
    loose_stable: str = ""
    """Unrevisable text of the utterance that is not committed."""
    speculation: Speculation | None = None
    epoch: int = 0
    """Number of the present recogniser stream; reports of earlier ones are stale."""
    recognizer_open: bool = False
    epoch_start_ms: int = 0
    recognizer_failures: int = 0
    responses: dict[str, ActiveResponse] = field(default_factory=dict)
    active: ActiveResponse | None = None
    """The response that writes the default conversation."""
    reply_waits: str | None = None
    """User item that is answered when the active response has ended."""
    last_response_id: str = ""
    """The newest response of the conversation that made audio."""
    playing: list[Entry] = field(default_factory=list)
    """Spoken items that the client may not have played to their end."""
    play_end: float = 0.0
    """When the client has played all that was sent, at the earliest."""
    unsent_seconds: float = 0.0
    """Audio of the conversation's responses that waits to be sent."""
    sounding: str | None = None
    """Response whose output_audio_buffer.started was sent without its end."""
    idle_from: float | None = None
    """When the last reply has been played, for idle_timeout_ms; None while none is due."""
    history_start: str | None = None
    """First item that prompts show; what is before was dropped or summarised."""
    tokens_per_character: float = 0.0
    """Of the newest prompt; 0 before the first."""
    summary: Summary = field(default_factory=Summary)
    phrases: dict[str, bytes] = field(default_factory=dict)
    """Audio of acknowledgement phrases in the present voice and format; empty while it is made."""
    phrase_speech: SpeechConfig | None = None
    """Voice and format of that audio."""
    phrase_count: int = 0
    """Phrases spoken so far: they take turns."""
    voice_fixed: bool = False
    draining: bool = False
    closed: bool = False
    commands: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffer = InputBuffer(self.config.audio.input.format)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return f"sess_{self.token}"

    @property
    def conversation_id(self) -> str:
        """The conversation's id."""
        return f"conv_{self.token}"

    def new_id(self, prefix: str) -> str:
        """An id that is unique over sessions, such as ``item_...``."""
        self.id_count += 1
        return f"{prefix}_{self.token}{self.id_count:06x}"

    def send(self, event: events.ServerEvent, audio: AudioTag | None = None) -> None:
        """Queues an event for the client and numbers it."""
        self.event_count += 1
        event.event_id = f"event_{self.token}{self.event_count:08x}"
        self.commands.append(Send(event, audio))

    def announce(self, previous_id: str | None, item: Item) -> None:
        """Tells the client that the conversation has a new item."""
        self.send(events.ItemAdded(previous_item_id=previous_id, item=item))
        if "conversation.item.created" in self.config.optional_events:
            self.send(events.ItemCreated(previous_item_id=previous_id, item=item))

    def refuse(self, error: ProtocolError, event_id: str | None) -> None:
        """Tells the client what was wrong with its event."""
        self.send(
            events.Error(
                error=events.ErrorBody(
                    type=error.kind,
                    code=error.code,
                    message=error.message,
                    param=error.param or None,
                    event_id=event_id,
                )
            )
        )


def invalid_item(action: str, item_id: str) -> ProtocolError:
    """The error of an action on an item that does not exist."""
    return ProtocolError(
        f"there is no item {item_id!r} to {action}",
        code=f"item_{action}_invalid_item_id",
        param="item_id",
        kind=REQUEST_ERROR,
    )
