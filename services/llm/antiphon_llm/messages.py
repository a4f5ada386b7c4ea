"""The messages that the front and the engine process exchange.

Both sides import this module and nothing else of each other. Messages are msgspec
structs, encoded as msgpack and told apart by their tag. Structs only grow at the end,
with defaults, so that two neighbouring releases understand each other.

Words: a *row* is one request's part of a step; an *entry* is the scheduler's KV unit of
``entry_tokens`` tokens. Token ids are plain ints, times are seconds.
"""

from __future__ import annotations

import msgspec

from antiphon_llm.adapter_messages import AdapterFacts, LoadAdapter, UnloadAdapter
from antiphon_llm.engine_config import EngineConfig as EngineConfig


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A bound on the form of the output, checked by the front, compiled by the engine."""

    kind: str
    """json_schema, json_object, regex, choice, ebnf or structural_tag."""
    source: str = ""
    """The schema, expression, grammar or tag; for choice a JSON array of texts."""


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """Where the model's reasoning ends, as token ids: known from its template."""

    start_ids: list[int]
    """Opening marker; it may be drawn only where ``open`` is False."""
    end_ids: list[int]
    """Closing marker; it counts as reasoning. A constraint is armed behind it."""
    open: bool
    """Whether the rendered prompt leaves a block open."""
    budget: int = -1
    """Reasoning tokens after which the block is closed by force; -1 is no bound."""
    transition_ids: list[int] = []
    """Forced before ``end_ids`` at the budget."""
    opener_ids: list[int] = []
    """Ids that close the block and begin the answer, as a tool call's opening marker may."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """One request's draw settings, validated and completed by the front."""

    temperature: float = 1.0
    """0 is greedy: the engine turns it into top_k 1."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    """The 64-bit request key is derived from it; the front draws one when the caller gave none."""
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int = -1
    """-1 none, 0 the chosen token only, k the k best besides; from unfiltered logits."""
    prompt_logprobs: int = -1
    allowed_token_ids: list[int] = []
    """The only ids that may be drawn; empty allows all."""
    banned_token_ids: list[int] = []
    no_repeat_ngram_size: int = 0
    """Sequences of so many tokens that may not occur twice; 0 is off."""
    no_repeat_ngram_window: int = 0
    """Latest tokens that are searched for them, prompt included; 0 searches all."""
    draft_depth: int = -1
    """Most draft tokens of a step; 0 drafts nothing, -1 leaves it to the engine."""
    constraint: Constraint | None = None
    reasoning: Reasoning | None = None
    seeded: bool = False
    """The caller named the seed: the tokens must not depend on what was drafted."""
    speech: bool = False
    """Whether speech codes may be drawn, where the model has any."""


class Boot(msgspec.Struct, tag="boot"):
    """First message to a new engine process."""

    config: EngineConfig
    vocabulary: list[bytes] = []
    """Bytes of each token as it stands in text, empty for control tokens; needed by
    constraints. Index is the id."""
    score_ids: list[int] = []
    """Tokens whose logits behind a prompt score it, where the model is used so."""


class Submit(msgspec.Struct, tag="submit"):
    """One sequence to generate. ``choice`` separates the n choices of one request."""

    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    choice: int = 0
    deadline: float = 0.0
    """time.time() seconds; 0 is none."""
    interactive: bool = True
    tenant: str = ""
    trace: str = ""
    adapter: str = ""
    cache: bool = True
    """False neither reads nor writes the prefix cache."""


class Cancel(msgspec.Struct, tag="cancel"):
    """Ends a request; unknown ids leave a bounded tombstone, so it may arrive before its submit."""

    request_id: str


class StopNow(msgspec.Struct, tag="stop_now"):
    """Ends a live sequence normally: its next token is an end token. Answered by Done."""

    request_id: str
    sequence: str
    """The ``request_id`` of its Submit."""


class AnswerNow(msgspec.Struct, tag="answer_now"):
    """Closes a live sequence's reasoning block as if its budget were spent. Answered by Done."""

    request_id: str
    sequence: str
    """The ``request_id`` of its Submit."""


class Shutdown(msgspec.Struct, tag="shutdown"):
    """Finish nothing more; free and exit 0."""


class EmbedSubmit(msgspec.Struct, tag="embed"):
    """Asks for numbers that are read off one token sequence's final hidden states."""

    request_id: str
    prompt_ids: list[int]
    pooling: str = ""
    """mean, last or cls in place of the model's own; empty for that."""
    normalise: bool = True
    """False leaves out the unit length that the readout may give."""
    readout: str = "embedding"
    """embedding, or score where the model has labels to score with."""
    deadline: float = 0.0
    """time.time() seconds; 0 is none."""
    interactive: bool = True
    tenant: str = ""
    cache: bool = False
    """Whether prompts that begin alike share their keys and values."""


class FlushCache(msgspec.Struct, tag="flush_cache"):
    """Makes cached prefixes unreachable; entries that requests hold survive. Answered by Done."""

    request_id: str
    tenant: str | None = None
    """None is every tenant."""


class Sleep(msgspec.Struct, tag="sleep"):
    """Finish what runs, then give the device memory back. Answered by Done."""

    request_id: str
    timeout_s: float = 60.0


class Wake(msgspec.Struct, tag="wake"):
    """Undo Sleep. Answered by Done."""

    request_id: str


ToEngine = (
    Boot
    | Submit
    | Cancel
    | StopNow
    | AnswerNow
    | Shutdown
    | EmbedSubmit
    | FlushCache
    | Sleep
    | Wake
    | LoadAdapter
    | UnloadAdapter
)


class BootPhase(msgspec.Struct, tag="phase"):
    """Sent when a boot phase begins, so that the front can tell what it waits for."""

    phase: str
    fraction: float = 0.0
    """Progress inside the phase, 0 to 1."""


class Hello(msgspec.Struct, tag="hello"):
    """The engine is ready to take Submit; facts of the built model."""

    architecture: str
    vocab_size: int
    context_limit: int
    eos_ids: list[int]
    kv_entries: int
    entry_tokens: int
    max_rows: int
    weight_bytes: int
    kv_bytes: int
    device: str
    dtype: str
    kernels: dict[str, str] = {}
    """Which implementation each operation uses, for the log and the snapshot."""
    boot_seconds: dict[str, float] = {}
    memory: dict[str, int] = {}
    """Bytes of the engine's device by owner, as measured or foreseen at boot."""
    entry_bytes: int = 0
    tokenizer: str = ""
    """Digest of the tokenizer in the files that the model was built from; empty for none."""
    embedding_size: int = 0
    """Components of an embedding."""
    pooling: str = ""
    """What an embedding is of: mean, last or cls."""
    labels: int = 0
    """Components of a score's readout; 0 where the model has none."""
    generates: bool = True
    """Whether there is an output head to draw tokens with."""


class TopLogprobs(msgspec.Struct, array_like=True):
    """The k best tokens at one position, best first."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int = 0
    """Of the token that stands there: 1 + the number of tokens with a larger logit."""


class Finish(msgspec.Struct, array_like=True):
    """The terminal of one request. Exactly one is sent for each Submit."""

    request_id: str
    reason: str
    """stop, length, context, cancelled, deadline, error."""
    error: str = ""
    error_reason: str = ""
    """ErrorReason name without prefix, when reason is error."""
    stop_token: int = -1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    retry_after: float = 0.0
    limit: float | None = None
    """The bound that refused the request, where it was one, and what was found instead."""
    observed: float | None = None
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    reasoning_tokens: int = -1
    """-1 where the model had no reasoning block."""


class StepOutputs(msgspec.Struct, tag="step"):
    """All that one step produced, as columns: row i drew ``token_ids[i]`` for ``request_ids[i]``.
    A request whose drafts were accepted stands in several rows, in the order of its tokens.

    ``admitted`` names requests that the scheduler accepted since the last message (their
    status may be committed). ``finished`` follows every token of the same request.
    """

    request_ids: list[str]
    token_ids: list[int]
    logprobs: list[float] = []
    """Chosen token's log-probability per row (nan where not asked); empty if nobody asked."""
    top_logprobs: list[TopLogprobs | None] = []
    admitted: list[str] = []
    finished: list[Finish] = []
    prompt_logprobs: dict[str, list[TopLogprobs | None]] = {}
    """For a request that asked: one item per prompt token, the first None; chosen token first."""
    cached: dict[str, int] = {}
    """Prompt tokens that the prefix cache saved those of ``admitted`` that it saved any."""


class Embedding(msgspec.Struct, tag="embedding"):
    """Answer to EmbedSubmit."""

    request_id: str
    vector: list[float]
    error: str = ""
    error_reason: str = ""
    retry_after: float = 0.0
    limit: float | None = None
    observed: float | None = None


class Gauges(msgspec.Struct, tag="gauges"):
    """Snapshot for health, admission and metrics: after each step, and each second when idle."""

    at: float
    waiting: int
    running: int
    kv_used: int
    kv_total: int
    rows_total: int
    steps: int
    prefill_tokens: int
    decode_tokens: int
    step_seconds: float
    tick_age: float = 0.0
    rss_bytes: int = 0
    fallbacks: dict[str, int] = {}
    kv_cached: int = 0
    """Entries that only the prefix cache holds: they count as free to whoever needs them."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache saved, since boot."""
    parked: int = 0
    door: str = ""
    """ErrorReason that refuses new work now; empty while the door is open."""
    counters: dict[str, int] = {}
    """Optional paths by outcome, such as ``graph: replay`` or ``graph: eager, above ladder``."""
    adapters: int = 0
    """Loaded ones."""
    adapter_bytes: int = 0


class Fault(msgspec.Struct, tag="fault"):
    """The engine cannot go on (or could not boot); it exits after this message."""

    message: str
    reason: str
    phase: str = ""


class Done(msgspec.Struct, tag="done"):
    """Answer to StopNow, AnswerNow, FlushCache, Sleep, Wake, LoadAdapter or UnloadAdapter; gauges
    that show the outcome go before it."""

    request_id: str
    error: str = ""
    error_reason: str = ""
    entries: int = 0
    """Entries that a flush made free at once."""
    released_bytes: int = 0
    """Memory that a sleep gave back."""
    field: str = ""
    """Of the message that is to blame."""
    limit: float | None = None
    observed: float | None = None
    adapter: AdapterFacts | None = None
    """What was loaded."""


FromEngine = BootPhase | Hello | StepOutputs | Embedding | Gauges | Fault | Done
