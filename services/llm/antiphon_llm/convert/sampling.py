"""Draw settings."""

from __future__ import annotations

from antiphon.llm.v1 import generate_pb2

from antiphon_llm.front.requests import SamplingOptions
from antiphon_llm.messages import Sampling
from antiphon_llm.request_key import request_key

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


def effective_settings(settings: Sampling) -> generate_pb2.EffectiveSettings:
    """What a request was drawn with."""
    return generate_pb2.EffectiveSettings(
        sampling=generate_pb2.SamplingParams(
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            repetition_penalty=settings.repetition_penalty,
            presence_penalty=settings.presence_penalty,
            frequency_penalty=settings.frequency_penalty,
            logit_bias=settings.logit_bias,
            seed=settings.seed,
            min_tokens=settings.min_tokens,
            draft_depth=None if settings.draft_depth < 0 else settings.draft_depth,
            allowed_token_ids=settings.allowed_token_ids,
            banned_token_ids=settings.banned_token_ids,
            no_repeat_ngram_size=settings.no_repeat_ngram_size,
            no_repeat_ngram_window=settings.no_repeat_ngram_window,
        ),
        max_tokens=settings.max_tokens,
        random_key=request_key(settings.seed),
    )
