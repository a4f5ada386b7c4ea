"""Words whose full stop does not end a sentence."""

from __future__ import annotations

TITLES = frozenset(
    "mr mrs ms mx dr prof st mt messrs gen col capt cmdr lt sgt maj rev hon gov sen rep pres supt "
    "vs cf ca approx dept est fig figs vol vols pp ed eds ch sec art al jan feb mar apr jun jul "
    "aug sep sept oct nov dec mon tue tues wed thu thurs fri sat bzw nr str evtl ggf vgl".split()
)
"""Never end a sentence: a name, a number or a date follows."""

NUMBERED = frozenset(["no", "nos", "art", "op", "p", "v"])
"""Abbreviations before a number only; otherwise words that may end a sentence."""

TRAILING = frozenset(
    "etc inc ltd co corp llc jr sr bros esq usw ave blvd rd a.m p.m am pm b.c a.d".split()
)
"""End a sentence when the next word begins with a capital letter."""
