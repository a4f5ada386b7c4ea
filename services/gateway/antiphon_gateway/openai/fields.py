"""Field policies: what each request field of each endpoint does here.

Every field of the official SDK's create parameters has a class; a test fails on one without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class FieldClass(Enum):
    """What a field does."""

    SERVED = "served"
    INERT = "inert"
    """Accepted; has no effect on the output."""
    REFUSED = "refused"
    """Would change the output and is not served: 400 unless null or a harmless value."""


@dataclass(frozen=True, slots=True)
class FieldPolicy:
    """The class of one field, and the raw JSON values of a refused one that change nothing."""

    kind: FieldClass
    harmless: tuple[bytes, ...] = ()
    instead: str = ""
    """What to send in place of a refused field, where there is something."""


Policies = Mapping[str, FieldPolicy]

_SERVED = FieldPolicy(FieldClass.SERVED)
_INERT = FieldPolicy(FieldClass.INERT)
_REFUSED = FieldPolicy(FieldClass.REFUSED)


def _table(served: str, inert: str = "", refused: str = "", **special: FieldPolicy) -> Policies:
    table = dict.fromkeys(served.split(), _SERVED)
    table |= dict.fromkeys(inert.split(), _INERT)
    table |= dict.fromkeys(refused.split(), _REFUSED)
    return table | special


def _refused_unless(*values: bytes) -> FieldPolicy:
    return FieldPolicy(FieldClass.REFUSED, values)


def _retired(instead: str) -> FieldPolicy:
    return FieldPolicy(FieldClass.REFUSED, instead=instead)


CHAT = _table(
    served="messages model audio frequency_penalty logit_bias logprobs max_completion_tokens "
    "max_tokens modalities n parallel_tool_calls presence_penalty reasoning_effort "
    "response_format seed stop stream stream_options temperature tool_choice tools top_logprobs "
    "top_p top_k min_p repetition_penalty stop_token_ids min_tokens ignore_eos "
    "chat_template_kwargs thinking_token_budget continue_final_message lora regex grammar choice "
    "return_timing allowed_token_ids banned_token_ids no_repeat_ngram_size "
    "no_repeat_ngram_window draft_depth include_stop priority service_tier",
    inert="user metadata safety_identifier prompt_cache_key prompt_cache_options "
    "prompt_cache_retention prediction",
    refused="moderation web_search_options",
    function_call=_retired("send tool_choice"),
    functions=_retired("send tools"),
    store=_refused_unless(b"false"),
    verbosity=_refused_unless(b'"medium"'),
)

COMPLETION = _table(
    served="model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n "
    "presence_penalty seed stop stream stream_options temperature top_p top_k min_p "
    "repetition_penalty stop_token_ids min_tokens ignore_eos lora regex grammar choice "
    "prompt_logprobs return_timing allowed_token_ids banned_token_ids no_repeat_ngram_size "
    "no_repeat_ngram_window draft_depth include_stop priority",
    inert="user",
    refused="suffix",
)

RESPONSE = _table(
    served="input model include instructions max_output_tokens metadata parallel_tool_calls "
    "previous_response_id reasoning service_tier store stream stream_options temperature text "
    "tool_choice tools top_logprobs top_p truncation top_k min_p repetition_penalty "
    "presence_penalty frequency_penalty logit_bias seed stop stop_token_ids min_tokens ignore_eos "
    "include_stop chat_template_kwargs thinking_token_budget lora regex grammar choice "
    "allowed_token_ids banned_token_ids no_repeat_ngram_size no_repeat_ngram_window draft_depth "
    "priority",
    inert="user safety_identifier prompt_cache_key prompt_cache_options prompt_cache_retention "
    "max_tool_calls",
    refused="access_programs background_options context_management conversation image moderation "
    "prompt",
    background=_refused_unless(b"false"),
)

EMBEDDING = _table(served="input model dimensions encoding_format priority", inert="user")

RERANK = _table(
    served="model query documents top_n return_documents priority",
    inert="user",
    refused="max_tokens_per_doc max_chunks_per_doc rank_fields truncate_prompt_tokens truncation",
)

SCORE = _table(
    served="model text_1 text_2 priority", inert="user", refused="truncate_prompt_tokens"
)

SPEECH = _table(
    served="input model voice instructions response_format speed stream_format language "
    "sample_rate",
)

TRANSCRIPTION = _table(
    served="file model language prompt response_format temperature timestamp_granularities stream "
    "include keywords known_speaker_names known_speaker_references languages",
    chunking_strategy=_refused_unless(b"auto", b'"auto"'),
)

TRANSLATION = _table(served="file model prompt response_format temperature language keywords")

VOICE = _table(served="audio_sample name consent type", refused="prompt model script_hint")

CONSENT = _table(served="recording name language")

CONSENT_UPDATE = _table(served="name")

TOKENIZE = _table(
    served="model prompt messages tools add_special_tokens chat_template_kwargs "
    "continue_final_message",
)

LORA = _table(served="name path base_model shared")

DETOKENIZE = _table(served="model tokens")

FILE = _table(served="file purpose expires_after")

BATCH = _table(
    served="input_file_id endpoint completion_window metadata output_expires_after",
)
