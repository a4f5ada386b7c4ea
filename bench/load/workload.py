"""What is asked: a seeded, endless sequence of jobs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.load.lengths import Lengths


@dataclass(frozen=True)
class Workload:
    """The shape of the requests. The same values and seed give the same jobs on every target.

    A prompt is an own part of ``prompt_tokens`` and, for ``prefix_share`` of the requests, one of
    ``prefixes`` common beginnings of ``prefix_tokens`` before it.
    """

    prompt_tokens: Lengths
    output_tokens: Lengths
    prefixes: int = 0
    prefix_tokens: int = 0
    prefix_share: float = 1.0
    cancel_share: float = 0.0
    """Requests that are cancelled, at a token drawn evenly from 0 (at once) to their last."""
    deadline_share: float = 0.0
    deadline_s: tuple[float, float] = (0.5, 5.0)
    """Range of the deadlines of those that have one, in seconds from submission."""
    tenants: int = 0
    """Tenants that take turns by chance; 0 sends none."""
    batch_share: float = 0.0
    """Requests of the batch class; the rest is interactive."""
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    vocabulary: tuple[int, int] = (1000, 30_000)
    """Prompt ids are drawn from [low, high): clear of control tokens, inside every vocabulary."""
    seed: int = 0

    def check(self) -> None:
        """Refuses what contradicts itself.

        Raises:
            ValueError: naming the value.
        """
        for name in ("prefix_share", "cancel_share", "deadline_share", "batch_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed is 0 to 1")
        if self.prefixes < 0 or self.tenants < 0:
            raise ValueError("prefixes and tenants count from 0")
        if bool(self.prefixes) != bool(self.prefix_tokens):
            raise ValueError("prefixes and prefix_tokens go together")
        low, high = self.deadline_s
        if not 0.0 < low <= high:
            raise ValueError(f"deadline_s is {low} to {high}; both are above 0, the lower first")
        if not 0 <= self.vocabulary[0] < self.vocabulary[1]:
            raise ValueError(f"vocabulary is {self.vocabulary}: an empty range of ids")

    def jobs(self) -> Iterator[Job]:
        """Jobs without end."""
        chance = random.Random(self.seed)
        common = [self._ids(chance, self.prefix_tokens) for _ in range(self.prefixes)]
        index = 0
        while True:
            prefix: tuple[int, ...] = ()
            prefix_index = -1
            if common and chance.random() < self.prefix_share:
                prefix_index = chance.randrange(len(common))
                prefix = common[prefix_index]
            output_tokens = self.output_tokens.draw(chance)
            cancelled = chance.random() < self.cancel_share
            bounded = chance.random() < self.deadline_share
            yield Job(
                index=index,
                prompt_ids=prefix + self._ids(chance, self.prompt_tokens.draw(chance)),
                output_tokens=output_tokens,
                prefix=prefix_index,
                cancel_after=chance.randint(0, output_tokens - 1) if cancelled else None,
                deadline_s=chance.uniform(*self.deadline_s) if bounded else None,
                tenant=f"tenant-{chance.randrange(self.tenants)}" if self.tenants else "",
                batch=chance.random() < self.batch_share,
                seed=chance.getrandbits(31),
            )
            index += 1

    def _ids(self, chance: random.Random, count: int) -> tuple[int, ...]:
        low, high = self.vocabulary
        return tuple(chance.choices(range(low, high), k=count))


@dataclass(frozen=True, slots=True)
class Job:
    """One request."""

    index: int
    prompt_ids: tuple[int, ...]
    output_tokens: int
    """Asked for; end tokens of the model are ignored, so that as many come."""
    prefix: int = -1
    """Which common beginning it has; -1 none."""
    cancel_after: int | None = None
    """Output tokens after which the client leaves; None stays."""
    deadline_s: float | None = None
    tenant: str = ""
    batch: bool = False
    seed: int = 0
