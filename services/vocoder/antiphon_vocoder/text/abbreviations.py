"""Words whose full stop does not end a sentence."""

from __future__ import annotations

TITLES = frozenset({
    "mr", "mrs", "ms", "mx", "dr", "prof", "st", "mt", "messrs", "gen", "col", "capt", "cmdr", "lt",
    "sgt", "maj", "rev", "hon", "gov", "sen", "pres", "supt", "vs", "cf", "approx", "dept", "al",
    "ca", "bzw", "evtl", "ggf", "vgl", "nr",
})  # fmt: skip
"""Never end a sentence: a name or the rest of the phrase follows."""

NUMBERED = frozenset({
    "no", "nos", "art", "op", "p", "pp", "v", "vol", "vols", "ch", "sec", "fig", "figs", "ed",
    "est", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec",
    "mon", "tue", "tues", "wed", "thu", "thurs", "fri", "sat", "sun",
})  # fmt: skip
"""Abbreviations before a number; otherwise words that may end a sentence."""

TRAILING = frozenset({
    "etc", "inc", "ltd", "co", "corp", "llc", "jr", "sr", "bros", "esq", "usw", "ave", "blvd", "rd",
    "a.m", "p.m", "am", "pm", "b.c", "a.d",
})  # fmt: skip
"""End a sentence when the next word begins with a capital letter."""
