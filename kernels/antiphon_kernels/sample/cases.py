"""Logits and settings for tests and benchmarks of the draw."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from antiphon_kernels.sample import RowSettings


@dataclass(frozen=True)
class Knobs:
    """One row's settings; ``greedy`` is top_k 1 without noise."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    greedy: bool = False


GREEDY = Knobs(top_k=1, greedy=True)
PLAIN = Knobs(temperature=0.8)
USUAL = Knobs(temperature=0.8, top_k=50, top_p=0.95)
NUCLEUS = Knobs(temperature=0.8, top_p=0.95)
MIN_P = Knobs(temperature=1.2, min_p=0.05)

MIXED = (
    GREEDY,
    PLAIN,
    USUAL,
    NUCLEUS,
    MIN_P,
    Knobs(top_k=1),
    Knobs(top_p=0.0),
    Knobs(temperature=1.7, top_k=5),
    Knobs(temperature=1.3, top_k=12, top_p=0.7, min_p=0.02),
    Knobs(temperature=0.3, top_k=40, min_p=0.3),
    Knobs(top_p=0.6, min_p=1.0),
    Knobs(temperature=100.0),
)
"""What common requests ask for, and each filter alone and with the others."""

WIDE_NUCLEUS = Knobs(temperature=1.0, top_p=0.95)
"""Thousands of tokens of ``peaked_logits``."""
SEARCHED = (
    WIDE_NUCLEUS,
    Knobs(top_k=1000),
    Knobs(temperature=0.05, top_k=3000),
    Knobs(top_k=5000, top_p=0.9),
    Knobs(temperature=3.0, top_p=0.99),
    Knobs(temperature=50.0, top_p=1 - 2**-24),
    Knobs(temperature=20.0, min_p=0.5),
)
"""Settings whose cut a large vocabulary does not leave to the candidates."""


def settings_of(knobs: tuple[Knobs, ...], device: torch.device, seed: int = 0) -> RowSettings:
    """One row per entry, with keys, positions and choices of their own."""
    rows = len(knobs)
    generator = torch.Generator().manual_seed(seed)
    settings = RowSettings.allocate(rows)
    settings.temperature.copy_(torch.tensor([k.temperature for k in knobs]))
    settings.noise.copy_(torch.tensor([float(not k.greedy) for k in knobs]))
    settings.top_k.copy_(torch.tensor([k.top_k for k in knobs]))
    settings.top_p.copy_(torch.tensor([k.top_p for k in knobs], dtype=torch.float64))
    settings.log_min_p.copy_(torch.tensor([k.min_p for k in knobs]).double().log())
    settings.key.copy_(torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator))
    settings.position.copy_(torch.randint(0, 2**17, (rows,), generator=generator))
    settings.choice.copy_(torch.arange(rows) % 3)
    on_device = RowSettings.allocate(rows, device)
    on_device.buffer.copy_(settings.buffer)
    return on_device


def peaked_logits(rows: int, vocabulary: int, device: torch.device, seed: int = 0) -> torch.Tensor:
    """fp32 (R, V) shaped like a language model's: a bell, and a few tokens far above it.

    The bell's logits lie at -4 with a spread of 2 and the rank-n favourite is about 10 - ln n
    high: of 152k tokens a nucleus of 0.95 holds hundreds at a temperature of 0.8, thousands at 1.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator) * 2 - 4
    count = min(512, vocabulary)
    heights = 10 - torch.arange(1, count + 1).log()
    for row in logits:
        favourites = torch.randperm(vocabulary, generator=generator)[:count]
        row[favourites] = heights + torch.randn(count, generator=generator) * 0.5
    return logits.to(device)
