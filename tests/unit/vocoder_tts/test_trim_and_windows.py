"""Silence trimming while it streams; windows of a clause."""

from __future__ import annotations

import itertools

import numpy as np
from antiphon_vocoder.engine.stream import window_stops
from antiphon_vocoder.tts.trim import SilenceTrimmer
from hypothesis import given
from hypothesis import strategies as st

RATE = 1000


def trim(signal: np.ndarray, edges: list[int]) -> np.ndarray:
    trimmer = SilenceTrimmer(RATE)
    bounds = [0, *sorted(edges), len(signal)]
    return np.concatenate([trimmer.push(signal[a:b]) for a, b in itertools.pairwise(bounds)])


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 120)), max_size=8),
    st.data(),
)
def test_any_cut_trims_as_the_whole(runs: list[tuple[bool, int]], data: st.DataObject) -> None:
    parts = [np.full(length, 0.5 if loud else 0.0, np.float32) for loud, length in runs]
    signal = np.concatenate([np.zeros(0, np.float32), *parts])
    edges = data.draw(st.lists(st.integers(0, len(signal)), max_size=6))
    assert np.array_equal(trim(signal, edges), trim(signal, []))


def test_margins_stay_and_inner_silence_stays() -> None:
    loud, quiet = np.full(50, 0.5, np.float32), np.zeros(200, np.float32)
    trimmed = trim(np.concatenate((quiet, loud, quiet, loud, quiet)), [])
    assert len(trimmed) == 10 + 50 + 200 + 50 + 30
    assert np.array_equal(trimmed[10:60], loud)


def test_silence_alone_is_nothing() -> None:
    assert len(trim(np.zeros(500, np.float32), [100])) == 0


@given(st.integers(1, 3000), st.booleans())
def test_windows_cover_the_clause(frames: int, first: bool) -> None:
    stops = window_stops(frames, 86.13, first=first)
    assert stops[-1] == frames
    assert stops == sorted(set(stops))
    sizes = np.diff([0, *stops])
    assert sizes.max() <= 1.5 * 95
    if first and frames > 45:
        assert stops[0] == 30
