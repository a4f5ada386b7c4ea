"""The engine's one door to structured output: compiles, processors, counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from antiphon_llm.messages import Constraint, EngineConfig
from antiphon_llm.sampler.row import SamplerRow

from .backend import Grammar, GrammarBackend
from .compile_pool import Compilation, CompilePool
from .processor import GrammarProcessor


class Grammars:
    """What an engine with a vocabulary serves constraints with.

    Args:
        backend: compiles.
        config: threads, cache and time of compiles.
        text_ids: ids that have text; the others are control tokens.
        end_ids: the model's own end tokens.
    """

    def __init__(
        self,
        backend: GrammarBackend,
        config: EngineConfig,
        *,
        text_ids: Collection[int],
        end_ids: Collection[int],
    ) -> None:
        self.pool = CompilePool(
            backend,
            threads=config.grammar_threads,
            cache_bytes=config.grammar_cache_bytes,
            timeout_s=config.grammar_timeout_s,
        )
        self._text_ids = text_ids
        self._end_ids = frozenset(end_ids)
        self._desyncs = 0

    def compile(self, constraint: Constraint) -> Compilation:
        """Begins a compile, or finds it done; see ``CompilePool``."""
        return self.pool.submit(constraint)

    def ends(self, stop_ids: Collection[int]) -> list[int]:
        """The stop ids that end an output where its grammar allows it. A stop id with text is
        a part of the text, and cuts the output wherever it is drawn."""
        return sorted(
            token for token in stop_ids if token in self._end_ids or token not in self._text_ids
        )

    def bind(self, row: SamplerRow, grammar: Grammar, stop_ids: Collection[int]) -> None:
        """Holds a row that has drawn nothing yet to a grammar of its own."""
        ends = self.ends(stop_ids)
        row.add(
            GrammarProcessor(
                grammar.matcher(ends),
                end_ids=ends,
                thinking=row.thinking,
                stopping=lambda: row.stopper.active,
                on_desync=self._count_desync,
            )
        )

    def counters(self) -> dict[str, int]:
        """Compiles by outcome, and outputs that left their grammar."""
        desyncs = {"grammar: desync": self._desyncs} if self._desyncs else {}
        return {**self.pool.counters(), **desyncs}

    def close(self) -> None:
        """Ends the compiling threads."""
        self.pool.close()

    def _count_desync(self) -> None:
        self._desyncs += 1


def check_grammar_config(config: EngineConfig) -> None:
    """ValueError names the setting and what it may be."""
    if config.grammar_threads < 1:
        raise ValueError(f"grammar_threads must be 1 or more, got {config.grammar_threads}")
    if not 0 < config.grammar_timeout_s <= 600:
        raise ValueError(f"grammar_timeout_s must lie in (0, 600], got {config.grammar_timeout_s}")
    for name in ("grammar_cache_bytes", "grammar_whitespace"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must be 0 or more, got {getattr(config, name)}")


def build_grammars(
    config: EngineConfig, vocabulary: Sequence[bytes], *, width: int, end_ids: Collection[int]
) -> Grammars | None:
    """None where the front has sent no vocabulary, or nothing could ever end an output."""
    if not vocabulary or not end_ids:
        return None
    # Imported here: an engine without constraints loads no grammar library.
    from .xgrammar_backend import XgrammarBackend

    backend = XgrammarBackend(
        vocabulary,
        width=width,
        end_ids=end_ids,
        whitespace=config.grammar_whitespace,
        threads=config.grammar_threads,
    )
    text_ids = frozenset(index for index, token in enumerate(vocabulary) if token)
    return Grammars(backend, config, text_ids=text_ids, end_ids=end_ids)
