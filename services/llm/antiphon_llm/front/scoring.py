"""How the served model scores pairs: by the settings, else as its files say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_core.errors import FailedPrecondition

from antiphon_llm.checkpoint import ModelSource
from antiphon_llm.config import LlmSettings
from antiphon_llm.front.errors import ModelSourceError
from antiphon_llm.front.pairs import PairPrompts, find_pair_template
from antiphon_llm.front.tokenizer import Tokenizer, read_json

_DEFAULT_TEMPLATE = "qwen3-reranker"
"""Of models that answer with one of two tokens, where no other is named."""


@dataclass(frozen=True)
class Scoring:
    """What the front makes of a pair, and what the engine reads behind it."""

    prompts: PairPrompts
    token_ids: Sequence[int] = ()
    """The tokens for no and yes; none where the model has labels of its own, or embeds."""


def scoring_of(tokenizer: Tokenizer, source: ModelSource, settings: LlmSettings) -> Scoring:
    """The scoring of a model.

    A checkpoint names its two words in ``classifier_from_token`` of config.json.

    Raises:
        FailedPrecondition: a word that is no single token, or an unusable template.
    """
    try:
        words: Sequence[str] = settings.score_tokens
        if not words and source.kind == "directory":
            named = read_json(source.path / "config.json").get("classifier_from_token")
            words = named if isinstance(named, list) else ()
        template = settings.score_template or (_DEFAULT_TEMPLATE if words else "")
        prompts = PairPrompts(tokenizer, find_pair_template(template))
    except ModelSourceError as error:
        raise FailedPrecondition(str(error), field="score_template") from None
    return Scoring(prompts, [_token(tokenizer, word) for word in words])


def _token(tokenizer: Tokenizer, word: object) -> int:
    ids = tokenizer.encode(word, add_special_tokens=False) if isinstance(word, str) else []
    if len(ids) != 1:
        raise FailedPrecondition(
            f"score_tokens has {word!r}, which the model's tokenizer makes {len(ids)} tokens of; "
            "each must be one",
            field="score_tokens",
        )
    return ids[0]
