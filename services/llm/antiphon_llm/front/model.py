"""The text side of a model: tokenizer, chat template, draw defaults, and facts for callers."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from antiphon_core.errors import FailedPrecondition
from antiphon_nn.errors import CheckpointError

from antiphon_llm.checkpoint import ModelSource
from antiphon_llm.front import generation_config, tokenizer
from antiphon_llm.front.errors import ModelSourceError
from antiphon_llm.front.generation_config import SamplingDefaults
from antiphon_llm.front.parsing.registry import OutputFormat, choose
from antiphon_llm.front.sampling_rules import reasoning_defaults
from antiphon_llm.front.templates import ChatTemplate, TemplateSource, find_template
from antiphon_llm.front.tokenizer import Tokenizer, read_json
from antiphon_llm.messages import Hello, Reasoning
from antiphon_llm.output_spec import OutputSpec, OutputSpecError, read_output_spec

_HEADER_LIMIT = 100 * 1024 * 1024
_HASHED_BYTES = 1024 * 1024


@dataclass(frozen=True)
class WeightFacts:
    """What the files say about the weights without loading them."""

    quantisation: str
    """The type that holds most parameters, such as Q4_1 or BF16."""
    parameter_count: int
    digest: str
    """Changes with the files; no full checksum."""


@dataclass(frozen=True)
class ModelCard:
    """The served model as callers see it."""

    name: str
    aliases: Sequence[str]
    architecture: str
    context_limit: int
    vocabulary_size: int
    quantisation: str
    parameter_count: int
    tokenizer_fingerprint: str
    fingerprint: str
    chat: bool
    loaded_at: float
    """time.time() seconds."""
    base_model: str = ""
    """Of an adapter; empty for a model of its own."""
    tenant: str = ""
    """Whose adapter it is."""
    shared: bool = False
    """Whether every tenant may use the adapter."""
    generates: bool = True
    """Whether it has an output head; without one it embeds and scores."""
    output: OutputSpec | None = None
    """Of a model that writes speech codes besides text."""


@dataclass(frozen=True)
class TextModel:
    """Everything that the front needs of a model."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: SamplingDefaults
    weights: WeightFacts
    format: OutputFormat
    """How the model writes reasoning and calls."""
    reasoning_defaults: SamplingDefaults | None = None
    """Of requests that may reason; None is ``defaults``."""
    output: OutputSpec | None = None
    """Of a model that writes speech codes besides text."""

    def defaults_of(self, reasoning: Reasoning | None) -> SamplingDefaults:
        """What a request takes for draw settings that it leaves open."""
        if reasoning is None or self.reasoning_defaults is None:
            return self.defaults
        return self.reasoning_defaults

    @cached_property
    def marker_ids(self) -> frozenset[int]:
        """Control tokens that a parser of the output reads."""
        found = map(self.tokenizer.token_id, self.format.markers())
        return frozenset(index for index in found if index in self.tokenizer.control_ids)

    @cached_property
    def opener_ids(self) -> dict[str, int]:
        """Beginnings of calls that are tokens of their own, in the vocabulary's added part."""
        found = {text: self.tokenizer.added_id(text) for text in self.format.calls.opening_texts}
        return {text: index for text, index in found.items() if index is not None}

    def vocabulary(self) -> list[bytes]:
        """The bytes of each token as the output's parser sees it: none for speech, and for
        control tokens but those that it reads."""
        hidden = self.tokenizer.control_ids - self.marker_ids
        if self.output is not None:
            hidden = hidden.union(self.output.speech_ids)
        return [
            b"" if index in hidden else self.tokenizer.token_bytes(index)
            for index in range(self.tokenizer.vocabulary_size)
        ]

    @cached_property
    def reasoning_ids(self) -> tuple[list[int], list[int]]:
        """Ids of the markers round a reasoning trace."""
        form = self.format.reasoning
        if form is None:
            return [], []
        start, end = (
            self.tokenizer.encode(marker, add_special_tokens=False)
            for marker in (form.start, form.end)
        )
        return start, end

    def check(self, hello: Hello) -> None:
        """The engine's model and this tokenizer belong together.

        Raises:
            FailedPrecondition: the tokenizer has ids that the model cannot take, or the engine
                found another one in the files: they were replaced since this one was read.
        """
        if hello.tokenizer and hello.tokenizer != self.tokenizer.fingerprint:
            raise FailedPrecondition(
                "the engine's model comes with another tokenizer than the one in use "
                f"({hello.tokenizer[:16]} and {self.tokenizer.fingerprint[:16]}): the files "
                "were replaced; restart the service",
                field="model",
            )
        if self.tokenizer.vocabulary_size > hello.vocab_size:
            raise FailedPrecondition(
                f"the tokenizer has {self.tokenizer.vocabulary_size} tokens but the model's "
                f"vocabulary only {hello.vocab_size}: they do not belong together",
                field="model",
            )

    def fingerprint(self, hello: Hello) -> str:
        """16 hex digits that change with anything that may change tokens."""
        parts = [
            self.weights.digest,
            self.tokenizer.fingerprint,
            self.template.digest if self.template else "",
            hello.architecture,
            hello.device,
            hello.dtype,
            json.dumps(hello.kernels, sort_keys=True),
        ]
        if self.output is not None:
            parts.append(repr(self.output))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def load_text_model(
    source: ModelSource,
    chat_template: str,
    tool_parser: str = "",
    reasoning_parser: str = "",
    reasoning_sampling: Mapping[str, float] | None = None,
) -> TextModel:
    """Reads the text side of a model; takes up to a few seconds, so call it in a thread.

    Args:
        source: where the files are.
        chat_template: a template file or packaged template in place of the model's own; empty
            for none.
        tool_parser: format of calls in place of what the template tells; empty for none.
        reasoning_parser: format of reasoning, likewise.
        reasoning_sampling: draw settings by name that requests which may reason take, over the
            model's own.

    Raises:
        FailedPrecondition: files that are damaged or of an unsupported kind; says which.
    """
    try:
        if source.kind == "gguf":
            files = _from_gguf(source, chat_template)
        else:
            files = _from_directory(source.path, chat_template)
        found = files.template
        signs = (found.tools_text or found.text) if found else ""
        form = choose(signs, tool_parser=tool_parser, reasoning_parser=reasoning_parser)
        template = ChatTemplate(found, files.tokenizer, form.calls) if found else None
        return TextModel(
            tokenizer=files.tokenizer,
            template=template,
            defaults=files.defaults,
            reasoning_defaults=reasoning_defaults(files.defaults, reasoning_sampling or {}),
            weights=files.weights,
            format=form,
            output=files.output,
        )
    except (ModelSourceError, CheckpointError, OutputSpecError) as error:
        raise FailedPrecondition(str(error), field="model") from None


@dataclass(frozen=True)
class _Files:
    """What a model's files hold of its text side."""

    tokenizer: Tokenizer
    template: TemplateSource | None
    defaults: SamplingDefaults
    weights: WeightFacts
    output: OutputSpec | None = None


def _from_gguf(source: ModelSource, chat_template: str) -> _Files:
    # Imported here, in the loading thread: it brings numpy, and the port must open first.
    from antiphon_nn.gguf_file import GgufFile

    file = GgufFile(source.path)
    loaded = tokenizer.from_gguf(file.metadata)
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.kind] += math.prod(tensor.shape)
    return _Files(
        tokenizer=loaded,
        template=find_template(override=chat_template, directory=None, metadata=file.metadata),
        defaults=generation_config.from_gguf(file.metadata, source.sampling),
        weights=_weight_facts(sizes, [source.path]),
    )


def _from_directory(path: Path, chat_template: str) -> _Files:
    loaded = tokenizer.from_directory(path)
    shards = sorted(path.glob("*.safetensors"))
    sizes: Counter[str] = Counter()
    for shard in shards:
        for entry in _safetensors_header(shard).values():
            if isinstance(entry, dict) and "dtype" in entry:
                sizes[str(entry["dtype"])] += math.prod(entry.get("shape", ()))
    config = read_json(path / "config.json")
    quantisation = config.get("quantization_config")
    facts = _weight_facts(sizes, shards)
    if isinstance(quantisation, dict) and "quant_method" in quantisation:
        facts = WeightFacts(str(quantisation["quant_method"]), facts.parameter_count, facts.digest)
    return _Files(
        tokenizer=loaded,
        template=find_template(override=chat_template, directory=path, metadata=None),
        defaults=generation_config.from_directory(path),
        weights=facts,
        output=read_output_spec(config),
    )


def _safetensors_header(path: Path) -> dict[str, Any]:
    """The table of tensors; the engine's loader checks it in full."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _HEADER_LIMIT:
                raise ModelSourceError(f"{path} has a header of {length} bytes")
            return json.loads(file.read(length))
    except (OSError, struct.error, ValueError) as error:
        raise ModelSourceError(f"{path} is not a safetensors file: {error}") from None


def _weight_facts(sizes: Counter[str], files: list[Path]) -> WeightFacts:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(file.read(_HASHED_BYTES))
    most = sizes.most_common(1)
    return WeightFacts(most[0][0] if most else "", sum(sizes.values()), digest.hexdigest())
