"""Request fields that every endpoint which generates text takes."""

from __future__ import annotations

from msgspec import Struct

from antiphon_gateway.openai.common import (
    ChoiceStrings,
    CountOrZero,
    DraftDepth,
    Fraction,
    Grammar,
    LogitBias,
    NgramSize,
    Penalty,
    PriorityName,
    RepetitionPenalty,
    Seed,
    Stop,
    StopTokenIds,
    Temperature,
    TokenIds,
    TopK,
)


class GenerationFields(Struct, kw_only=True):
    """How text is drawn and when it ends; null is the same as absent."""

    model: str | None = None
    allowed_token_ids: TokenIds | None = None
    banned_token_ids: TokenIds | None = None
    choice: ChoiceStrings | None = None
    draft_depth: DraftDepth | None = None
    frequency_penalty: Penalty | None = None
    grammar: Grammar | None = None
    ignore_eos: bool | None = None
    include_stop: bool | None = None
    logit_bias: LogitBias | None = None
    lora: str | None = None
    min_p: Fraction | None = None
    min_tokens: CountOrZero | None = None
    no_repeat_ngram_size: NgramSize | None = None
    no_repeat_ngram_window: CountOrZero | None = None
    presence_penalty: Penalty | None = None
    priority: PriorityName | None = None
    regex: Grammar | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stop_token_ids: StopTokenIds | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: Fraction | None = None
