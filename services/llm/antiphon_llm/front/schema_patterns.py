"""Regular expressions that the grammar compiler reads as ECMA-262 does, and their rewriting.

The compiler matches a pattern against the whole text. Inside a JSON string it leaves out what has
to be escaped there, but not everywhere: beside a counted repetition ``.``, a class or a range
takes a bare quote or backslash, and the text is no JSON. Look-around, back-references, word
boundaries and anchors in the middle have no counterpart. So a pattern is read first; what is
outside of the common part is refused by name, and in JSON strings every part that stands for
several characters is written anew without those that need an escape.
"""

from __future__ import annotations

from collections.abc import Iterable

_CLASS_ESCAPES = frozenset("dDwWsS")
_CONTROL_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_SPECIAL = frozenset("\\^$.|?*+()[]{}")
_NEEDS_ESCAPE = '\\x00-\\x1f\\"\\\\'
"""What a JSON string has to escape, as it is written inside a class."""
_ANYTHING = f"[^{_NEEDS_ESCAPE}]*"
_BLANKS = "\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""What is white space beside that of ASCII."""
_OTHERS = {
    "D": " -!#-\\/:-\\[\\]-\U0010ffff",
    "S": (
        "!#-\\[\\]-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
        "\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
    ),
    "W": " !#-\\/:-@\\[\\]\\^`\\{-\U0010ffff",
}
"""The complements of digits, blanks and word characters among what needs no escape."""
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
    others = f"[^{_NEEDS_ESCAPE}{''.join(map(_escaped, children))}]"
    alternatives = [_escaped(key) + _complement(child) for key, child in children.items()]
    alternatives.append(f"{others}{_ANYTHING}")
    if "" not in node:
        alternatives.append("")
    return f"(?:{'|'.join(alternatives)})"


def length_pattern(fewest: int, most: int | None) -> str:
    """A whole-string pattern of all JSON strings of so many characters."""
    bound = "" if most is None else most
    return f"^[^{_NEEDS_ESCAPE}]{{{fewest},{bound}}}$"


def can_spell(name: str) -> bool:
    """Whether ``any_name_but`` can name this text: it needs no escape in a JSON string."""
    return all(character >= " " and character not in '"\\' for character in name)


def _escaped(character: str) -> str:
    """The character for itself, inside a class or outside."""
    return f"\\{character}" if character in _SPECIAL or character in "-/" else character


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
        self._json = json_text
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
            start = self._place
            escaped = self._escape()
            if escaped is None:
                return self._class_escape(self._text[start + 1])
            return self._single(escaped)
        if character in "*+?{}]":
            raise PatternUnsupported(f"it has {character} where nothing precedes it")
        self._place += 1
        if character == ".":
            return f"[^{_NEEDS_ESCAPE}]" if self._json else "[^\\n\\r]"
        return self._single(character)

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
        parts: list[str] = []
        while not self._take("]"):
            start = self._place
            low = self._class_item()
            if self._peek(0) == "-" and self._peek(1) not in ("", "]"):
                self._place += 1
                high = self._class_item()
                if low is None or high is None or low > high:
                    raise PatternUnsupported("a range of a character class has no order")
                parts += self._range(low, high, negated)
            elif low is None:
                parts.append(self._within_class(self._text[start + 1], negated))
            else:
                parts += self._range(low, low, negated)
        if not any(parts) and not (negated and self._json):
            raise PatternUnsupported("a character class holds nothing that can be written")
        if negated and self._json:
            parts.append(_NEEDS_ESCAPE)
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def _range(self, low: str, high: str, negated: bool) -> list[str]:
        """The characters from ``low`` to ``high``, in JSON without those that need an escape."""
        if negated or not self._json:
            return [_span(low, high)]
        if low == high:
            self._single(low)
        pieces = ((" ", "!"), ("#", "["), ("]", "\U0010ffff"))
        cut = [(max(low, first), min(high, last)) for first, last in pieces]
        return [_span(first, last) for first, last in cut if first <= last]

    def _class_item(self) -> str | None:
        """One character; None for an escape that stands for several."""
        character = self._peek(0)
        if not character:
            raise PatternUnsupported("a character class is not closed")
        if character == "[":
            raise PatternUnsupported("it has [ inside a character class")
        if character == "\\":
            return self._escape()
        self._place += 1
        return character

    def _escape(self) -> str | None:
        character = self._peek(1)
        if character in _CLASS_ESCAPES:
            self._place += 2
            return None
        if character in _CONTROL_ESCAPES:
            self._place += 2
            return _CONTROL_ESCAPES[character]
        digits = {"x": 2, "u": 4}.get(character, 0)
        if digits:
            return self._code_point(digits)
        if not character or character.isalnum() or ord(character) >= 128:
            raise PatternUnsupported(f"it has the escape \\{character}")
        self._place += 2
        return character

    def _code_point(self, digits: int) -> str:
        number = self._text[self._place + 2 : self._place + 2 + digits]
        if len(number) != digits or any(digit not in "0123456789abcdefABCDEF" for digit in number):
            raise PatternUnsupported(f"it has \\{self._peek(1)} without {digits} digits")
        code = int(number, 16)
        if 0xD800 <= code < 0xE000:
            raise PatternUnsupported("it has half of a surrogate pair")
        self._place += 2 + digits
        return chr(code)

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

    def _class_escape(self, letter: str) -> str:
        if not self._json:
            return f"\\{letter}"
        return f"[{self._within_class(letter, negated=False)}]"

    def _within_class(self, letter: str, negated: bool) -> str:
        """An escape that stands for several characters, as it is written inside a class."""
        if not self._json:
            return f"\\{letter}"
        if letter in "DSW":
            if negated:
                raise PatternUnsupported(f"it has \\{letter} in a negated class")
            return _OTHERS[letter]
        if letter == "s":
            return f"\\s{_BLANKS}" if negated else " "
        return f"\\{letter}"

    def _single(self, character: str) -> str:
        """A character for itself; one that JSON escapes would be let through as it is."""
        if self._json and not can_spell(character):
            raise PatternUnsupported(f"it names {character!r}, which a JSON string escapes")
        return _escaped(character)

    def _peek(self, ahead: int) -> str:
        return self._text[self._place + ahead : self._place + ahead + 1]

    def _take(self, character: str) -> bool:
        if self._peek(0) != character:
            return False
        self._place += 1
        return True


def _span(low: str, high: str) -> str:
    return _escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}"
