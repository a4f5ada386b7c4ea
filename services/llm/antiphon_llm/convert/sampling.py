"""Draw settings."""

from __future__ import annotations

from antiphon.llm.v1 import generate_pb2

from antiphon_llm.front.requests import SamplingOptions

from .common import decimal, optional, shortest


def sampling_options(message: generate_pb2.SamplingParams) -> SamplingOptions:
    """What the caller set; None where it left the choice to the model."""
    return SamplingOptions(
        temperature=decimal(message, "temperature"),
        top_k=optional(message, "top_k"),
        top_p=decimal(message, "top_p"),
        min_p=decimal(message, "min_p"),
        repetition_penalty=decimal(message, "repetition_penalty"),
        presence_penalty=decimal(message, "presence_penalty"),
        frequency_penalty=decimal(message, "frequency_penalty"),
        logit_bias={index: shortest(bias) for index, bias in message.logit_bias.items()},
        seed=optional(message, "seed"),
        min_tokens=optional(message, "min_tokens"),
        draft_depth=optional(message, "draft_depth"),
        allowed_token_ids=list(message.allowed_token_ids),
        banned_token_ids=list(message.banned_token_ids),
        no_repeat_ngram_size=optional(message, "no_repeat_ngram_size"),
        no_repeat_ngram_window=optional(message, "no_repeat_ngram_window"),
    )
