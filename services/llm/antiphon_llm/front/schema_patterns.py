"""Regular expressions that the grammar compiler reads as ECMA-262 does, and their rewriting.

The compiler matches a pattern against the whole text. Inside a JSON string it leaves out what has
to be escaped there, but not everywhere: beside a counted repetition ``.``, a class or a range
takes a bare quote or backslash, and the text is no JSON. Look-around, back-references, word
boundaries and anchors in the middle have no counterpart. So a pattern is read first; what is
outside of the common part is refused by name, and every part that stands for several characters
is written anew as the class of those that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon_llm.front.schema_classes import (
    ALL_TEXT,
    JSON_TEXT,
    LINE_ENDS,
    NAMED,
    Ranges,
    complement,
    within,
    write_character,
    write_class,
)

_CONTROL_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_ANY = write_class(JSON_TEXT)
_ANYTHING = f"{_ANY}*"
_HEX = "[0-9A-Fa-f]{1,4}"
_LABEL = "[A-Za-z0-9]{1,12}(?:|-[A-Za-z0-9]{1,12})"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = (
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:|\\.[0-9]{1,9})"
    "(?:Z|[+\\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "hostname": f"^{_LABEL}(?:\\.{_LABEL}){{0,3}}$",
    "ipv6": (
        f"^(?:(?:{_HEX}:){{7}}{_HEX}|(?:{_HEX}:){{1,7}}:|(?:{_HEX}:){{1,6}}:{_HEX}"
        + "".join(f"|(?:{_HEX}:){{1,{7 - n}}}(?::{_HEX}){{1,{n}}}" for n in range(2, 7))
        + f"|:(?:(?::{_HEX}){{1,7}}|:))$"
    ),
}
"""Whole-string patterns of formats that the compiler takes too widely: 31 April, a second label
that begins with a hyphen. They leave out leap seconds, names of more than 4 labels, labels of
more than two parts of 12 letters, and addresses with a dotted end."""
GROUP_DEPTH = 100
"""Groups inside groups."""
REPEAT_LIMIT = 128
"""Most repetitions of a part, those of the parts inside multiplied: beyond it the compiler counts
while it matches, which takes 20 to 60 ms a token at a vocabulary of 49k."""
REPEAT_TOTAL = 512
"""Of all parts of a pattern together: each is a state that the compiler goes through the whole
vocabulary for, 4 ms at 49k."""


class PatternUnsupported(ValueError):
    """The pattern has a construct that cannot be enforced; the message names it."""


def search_pattern(pattern: str) -> str:
    """A whole-string pattern of the strings in which ``pattern`` is found, for JSON strings.

    Raises:
        PatternUnsupported: naming the construct.
    """
    alternatives = _Scanner(pattern, json_text=True).top_alternatives()
    return f"^(?:{'|'.join(map(_anchored, alternatives))})$"


def whole_pattern(pattern: str) -> str:
    """A pattern that plain text has to match as a whole, with the constructs that are enforced.

    Raises:
        PatternUnsupported: naming the construct.
    """
    return "|".join(_Scanner(pattern, json_text=False).top_alternatives())


def any_name_but(names: Iterable[str]) -> str:
    """A whole-string pattern of all texts except these."""
    trie: dict[str, dict] = {}
    for name in names:
        node = trie
        for character in name:
            node = node.setdefault(character, {})
        node[""] = {}
    return f"^{_complement(trie)}$"


def _complement(node: dict[str, dict]) -> str:
    """Texts that the trie below this node does not hold."""
    children = {key: child for key, child in node.items() if key}
    others = write_class(complement([(ord(key), ord(key)) for key in children], JSON_TEXT))
    alternatives = [
        write_character(ord(key)) + _complement(child) for key, child in children.items()
    ]
    alternatives.append(f"{others}{_ANYTHING}")
    if "" not in node:
        alternatives.append("")
    return f"(?:{'|'.join(alternatives)})"


def length_pattern(fewest: int, most: int | None) -> str:
    """A whole-string pattern of all JSON strings of so many characters."""
    bound = "" if most is None else most
    return f"^{_ANY}{{{fewest},{bound}}}$"


def can_spell(name: str) -> bool:
    """Whether ``any_name_but`` can name this text: it needs no escape in a JSON string."""
    return all(character >= " " and character not in '"\\' for character in name)


def _anchored(alternative: str) -> str:
    """One alternative for the whole string: what an anchor does not hold may be anything."""
    start = "" if alternative.startswith("^") else _ANYTHING
    body = alternative.removeprefix("^")
    if _ends_with_anchor(body):
        return f"{start}{body[:-1]}"
    return f"{start}{body}{_ANYTHING}"


def _ends_with_anchor(body: str) -> bool:
    slashes = len(body[:-1]) - len(body[:-1].rstrip("\\"))
    return body.endswith("$") and slashes % 2 == 0


class _Scanner:
    """Reads a pattern from left to right and writes it anew."""

    def __init__(self, pattern: str, *, json_text: bool) -> None:
        self._text = pattern
        self._place = 0
        self._universe = JSON_TEXT if json_text else ALL_TEXT
        self._repeats = 0
        """Most repetitions of one part of what was read last."""
        self._total = 0
        self._empty = False
        """Whether what was read last may be empty."""

    def top_alternatives(self) -> list[str]:
        """The texts between the bars that stand in no group."""
        found = [self._alternative(depth=0)]
        while self._take("|"):
            found.append(self._alternative(depth=0))
        if self._place < len(self._text):
            raise PatternUnsupported("it closes a group that is not open")
        return found

    def _alternative(self, depth: int) -> str:
        """Up to a bar, a closing bracket or the end."""
        start, most, empty = self._place, 1, True
        parts: list[str] = []
        while (character := self._peek(0)) not in ("", "|", ")"):
            if character == "^":
                if depth or self._place != start:
                    raise PatternUnsupported("it has ^ in the middle")
            elif character == "$":
                if depth or self._peek(1) not in ("", "|"):
                    raise PatternUnsupported("it has $ in the middle")
            else:
                self._repeats, self._empty = 1, False
                atom = self._atom(character, depth)
                parts.append(self._repeated(atom))
                most, empty = max(most, self._repeats), empty and self._empty
                continue
            self._place += 1
            parts.append(character)
        self._repeats, self._empty = most, empty
        return "".join(parts)

    def _atom(self, character: str, depth: int) -> str:
        if character == "(":
            return self._group(depth + 1)
        if character == "[":
            return self._class()
        if character == "\\":
            ranges = self._escape()
            return self._written(ranges) if len(ranges) > 1 else self._single(ranges)
        if character in "*+?{}]":
            raise PatternUnsupported(f"it has {character} where nothing precedes it")
        self._place += 1
        if character == ".":
            return write_class(complement(LINE_ENDS, self._universe))
        return self._single(_one(character))

    def _group(self, depth: int) -> str:
        if depth > GROUP_DEPTH:
            raise PatternUnsupported(f"its groups are nested more than {GROUP_DEPTH} deep")
        self._place += 1
        if self._text.startswith("?:", self._place):
            self._place += 2
        elif self._text.startswith("?", self._place):
            raise PatternUnsupported("it looks around, names a group or sets a flag, with (?")
        parts, most, empty = [self._alternative(depth)], self._repeats, self._empty
        while self._take("|"):
            parts.append(self._alternative(depth))
            most, empty = max(most, self._repeats), empty or self._empty
        if not self._take(")"):
            raise PatternUnsupported("a group is not closed")
        self._repeats, self._empty = most, empty
        return f"(?:{'|'.join(parts)})"

    def _class(self) -> str:
        self._place += 1
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._class_item()
            if self._peek(0) == "-" and self._peek(1) not in ("", "]"):
                self._place += 1
                high = self._class_item()
                if len(low) > 1 or len(high) > 1 or low > high:
                    raise PatternUnsupported("a range of a character class has no order")
                ((first, _), (_, last)) = (*low, *high)
                found.append((first, last))
            else:
                if len(low) == 1 and not negated:
                    self._single(low)
                found += low
        return self._written(complement(found, self._universe) if negated else found)

    def _written(self, ranges: Iterable[tuple[int, int]]) -> str:
        held = within(ranges, self._universe)
        if not held:
            raise PatternUnsupported("a character class holds nothing that can be written")
        return write_class(held)

    def _class_item(self) -> Ranges:
        character = self._peek(0)
        if not character:
            raise PatternUnsupported("a character class is not closed")
        if character == "[":
            raise PatternUnsupported("it has [ inside a character class")
        if character == "\\":
            return self._escape()
        self._place += 1
        return _one(character)

    def _escape(self) -> Ranges:
        """The characters that an escape stands for."""
        character = self._peek(1)
        digits = {"x": 2, "u": 4}.get(character, 0)
        if digits:
            return self._code_point(digits)
        if character in NAMED:
            found = NAMED[character]
        elif character in _CONTROL_ESCAPES:
            found = _one(_CONTROL_ESCAPES[character])
        elif not character or character.isalnum() or ord(character) >= 128:
            raise PatternUnsupported(f"it has the escape \\{character}")
        else:
            found = _one(character)
        self._place += 2
        return found

    def _code_point(self, digits: int) -> Ranges:
        number = self._text[self._place + 2 : self._place + 2 + digits]
        if len(number) != digits or any(digit not in "0123456789abcdefABCDEF" for digit in number):
            raise PatternUnsupported(f"it has \\{self._peek(1)} without {digits} digits")
        code = int(number, 16)
        if 0xD800 <= code < 0xE000:
            raise PatternUnsupported("it has half of a surrogate pair")
        self._place += 2 + digits
        return ((code, code),)

    def _repeated(self, atom: str) -> str:
        quantifier = self._quantifier()
        if quantifier not in ("", "?") and self._empty:
            # The compiler lets a loop at the edge of such a part run alone.
            raise PatternUnsupported("a part that may be empty repeats")
        if quantifier == "?":
            # Its own "?" behind a group does the same.
            atom = atom if self._empty else f"(?:|{atom})"
            self._empty = True
            return atom
        self._empty = self._empty or quantifier == "*" or quantifier.startswith(("{0,", "{0}"))
        return f"{atom}{quantifier}"

    def _quantifier(self) -> str:
        start = self._place
        if self._take("{"):
            end = self._text.find("}", self._place)
            low, comma, high = self._text[self._place : max(end, 0)].partition(",")
            if not low.isdecimal() or (high and not high.isdecimal()):
                raise PatternUnsupported("it has { that is no repetition {n}, {n,} or {n,m}")
            if comma and high and int(low) > int(high):
                raise PatternUnsupported("a repetition has its bounds in the wrong order")
            self._count(int(high or low))
            self._place = end + 1
        elif not (self._take("*") or self._take("+") or self._take("?")):
            return ""
        found = self._text[start : self._place]
        # Which of several matches is taken makes no difference to the texts that match.
        self._take("?")
        return found

    def _count(self, times: int) -> None:
        self._repeats *= max(1, times)
        if self._repeats > REPEAT_LIMIT:
            raise PatternUnsupported(f"a part may repeat more than {REPEAT_LIMIT} times")
        self._total += self._repeats
        if self._total > REPEAT_TOTAL:
            raise PatternUnsupported(f"its repetitions add up to more than {REPEAT_TOTAL}")

    def _single(self, ranges: Ranges) -> str:
        """A character for itself; one that JSON escapes would be let through as it is."""
        if not within(ranges, self._universe):
            named = chr(ranges[0][0])
            raise PatternUnsupported(f"it names {named!r}, which a JSON string escapes")
        return (
            self._written(ranges) if ranges[0][0] < ranges[0][1] else write_character(ranges[0][0])
        )

    def _peek(self, ahead: int) -> str:
        return self._text[self._place + ahead : self._place + ahead + 1]

    def _take(self, character: str) -> bool:
        if self._peek(0) != character:
            return False
        self._place += 1
        return True


def _one(character: str) -> Ranges:
    return ((ord(character), ord(character)),)
