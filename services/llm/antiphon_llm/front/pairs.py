"""How a query and a document become the prompt that a scoring model reads."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import jinja2
from antiphon_core.errors import InvalidArgument

from antiphon_llm.front.errors import ModelSourceError
from antiphon_llm.front.sandbox import TemplateEnvironment, render
from antiphon_llm.front.tokenizer import Tokenizer

RENDER_SECONDS = 2.0
SIZE_LIMIT = 4 << 20


class PairPrompts:
    """Makes prompts of pairs.

    Args:
        tokenizer: of the model.
        template: Jinja source that reads ``query`` and ``document``; empty encodes the two as
            the tokenizer's post-processor joins a pair.

    Raises:
        ModelSourceError: the template is no Jinja template.
    """

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        self._tokenizer = tokenizer
        self._template: jinja2.Template | None = None
        if template:
            try:
                self._template = TemplateEnvironment(SIZE_LIMIT).from_string(template)
            except jinja2.TemplateError as error:
                raise ModelSourceError(f"the score template is not valid: {error}") from None

    def ids(self, query: str, document: str) -> list[int]:
        """Token ids; control tokens inside a template's texts are text.

        Raises:
            InvalidArgument: TEMPLATE_ERROR.
        """
        if self._template is None:
            return self._tokenizer.encode_pair(query, document)
        guard = self._tokenizer.guard
        variables = {"query": guard(query), "document": guard(document)}
        try:
            text = render(self._template, variables, seconds=RENDER_SECONDS, size_limit=SIZE_LIMIT)
        except Exception as error:
            # Foreign code: whatever it raises on this input is its refusal of the input.
            raise InvalidArgument(
                f"the score template failed on this pair: {error}",
                reason="TEMPLATE_ERROR",
                field="pairs",
            ) from None
        return self._tokenizer.encode_guarded(text)


def find_pair_template(named: str) -> str:
    """The source of a template file or packaged template; empty for an empty name.

    Raises:
        ModelSourceError: there is neither.
    """
    if not named:
        return ""
    folder = resources.files("antiphon_llm") / "score_templates"
    packaged = sorted(item.name.removesuffix(".jinja") for item in folder.iterdir())
    if named in packaged:
        return (folder / f"{named}.jinja").read_text("utf-8")
    try:
        return Path(named).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelSourceError(
            f"score_template {named!r} cannot be read ({error}); packaged are {', '.join(packaged)}"
        ) from None
