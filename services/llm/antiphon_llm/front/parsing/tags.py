"""The vocabulary of structural tags, as the grammar compiler's version 0.2.8 reads them.

A tag is plain JSON data; the front only builds it, the engine compiles it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Tag = dict[str, Any]


def text(value: str) -> Tag:
    """Exactly this text."""
    return {"type": "const_string", "value": value}


def arguments(schema: Mapping[str, Any], whitespace: int, style: str = "json") -> Tag:
    """A value of a JSON schema.

    Args:
        schema: checked.
        whitespace: most white space characters in a row, at least 1.
        style: json, qwen_xml or glm_xml.
    """
    return {
        "type": "json_schema",
        "json_schema": dict(schema),
        "style": style,
        "max_whitespace_cnt": max(1, whitespace),
    }


def tag(begin: str, content: Tag, end: str) -> Tag:
    """Content between two fixed texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: Tag) -> Tag:
    """One after the other."""
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Tag) -> Tag:
    """One of these."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(content: Tag) -> Tag:
    """Once or not at all."""
    return {"type": "optional", "content": content}


def star(content: Tag) -> Tag:
    """Any number of times, also none."""
    return {"type": "star", "content": content}


def repeat(content: Tag, low: int, high: int) -> Tag:
    """So many times; -1 is no upper bound."""
    return {"type": "repeat", "min": low, "max": high, "content": content}


def any_text(*excludes: str) -> Tag:
    """Any text without these."""
    return {"type": "any_text", "excludes": list(excludes)}


def members(
    names: Sequence[str],
    required: Sequence[str],
    value: Callable[[str], Tag],
    *,
    between: str,
    assign: str,
) -> Tag:
    """Named values in a fixed order, those that are required first.

    Args:
        names: all.
        required: those that must be there.
        value: makes the tag of a value.
        between: text between two members.
        assign: text between name and value.
    """

    def member(name: str, before: str = "") -> Tag:
        return sequence(text(f"{before}{name}{assign}"), value(name))

    def optionals(names: Sequence[str]) -> list[Tag]:
        return [optional(member(name, between)) for name in names]

    rest = [name for name in names if name not in required]
    if required:
        first, *others = required
        return sequence(
            member(first), *(member(name, between) for name in others), *optionals(rest)
        )
    starts = [
        sequence(member(name), *optionals(rest[place + 1 :])) for place, name in enumerate(rest)
    ]
    return optional(either(*starts)) if starts else text("")


def several(calls: Sequence[Tag], separator: str, *, single: bool) -> Tag:
    """At least one of these tags, and nothing else."""
    return {
        "type": "tags_with_separator",
        "tags": list(calls),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def triggered(trigger: str, calls: Sequence[Tag], *, single: bool) -> Tag:
    """Any text, in which the trigger begins one of these tags.

    Args:
        trigger: beginning of each tag.
        calls: tags.
        single: nothing follows the first.
    """
    return {
        "type": "triggered_tags",
        "triggers": [trigger],
        "tags": list(calls),
        "at_least_one": False,
        "stop_after_first": single,
    }


def text_unless(beginnings: Sequence[str]) -> Tag:
    """Any text, also none, but those that begin so, behind white space or not.

    Args:
        beginnings: of two characters or more.
    """
    space = r"[ \t\r\n]*"
    cut = dict.fromkeys(
        beginning[:size]
        for beginning in beginnings
        for size in range(1, len(beginning))
        if not beginning[:size].startswith(tuple(beginnings))
    )
    whole = "|".join("".join(map(_literal, text)) for text in cut)
    parting = {"type": "regex", "pattern": f"{space}(?:{_parting(beginnings, _SPACE)})"}
    return either(
        sequence(parting, any_text()), {"type": "regex", "pattern": f"{space}(?:{whole})?"}
    )


_SPACE = " \t\r\n"


def _parting(beginnings: Sequence[str], besides: str = "") -> str:
    """A pattern of the shortest texts that begin none of these and are no prefix of one."""
    groups: dict[str, list[str]] = {}
    for beginning in beginnings:
        groups.setdefault(beginning[0], []).append(beginning[1:])
    branches = [f"[^{''.join(map(_in_class, (*groups, *besides)))}]"]
    for first, rests in groups.items():
        if all(rests):
            branches.append(f"{_literal(first)}(?:{_parting(rests)})")
    return "|".join(branches)


_BREAKS = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


def _literal(character: str) -> str:
    if character in r".^$*+?{}[]\|()/":
        return f"\\{character}"
    return _BREAKS.get(character, character)


def _in_class(character: str) -> str:
    return f"\\{character}" if character in r"\]^-[" else _BREAKS.get(character, character)


def example(format: Tag) -> str:
    """The shortest text that a tag allows, with the first of what it lets one choose from.

    Schemas are those that ``base.written`` makes: every value is a constant.
    """
    match format["type"]:
        case "const_string":
            return format["value"]
        case "tag":
            return f"{format['begin']}{example(format['content'])}{format['end']}"
        case "sequence":
            return "".join(map(example, format["elements"]))
        case "or":
            return example(format["elements"][0])
        case "tags_with_separator":
            return example(format["tags"][0])
        case "optional" | "star":
            return ""
        case "json_schema":
            return _example_value(format["json_schema"], format["style"])
    raise ValueError(f"no example of a {format['type']}")


def _example_value(schema: Mapping[str, Any], style: str) -> str:
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    values = {name: part["const"] for name, part in schema["properties"].items()}
    if style == "json":
        return json.dumps(values, ensure_ascii=False)
    form = {
        "qwen_xml": "<parameter={}>\n{}\n</parameter>",
        "glm_xml": "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>",
    }[style]
    return "\n".join(form.format(name, _plain(value)) for name, value in values.items())


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def of_constraint(kind: str, source: str, whitespace: int) -> Tag:
    """A constraint of the engine's messages as a part of a tag.

    Args:
        kind: as in ``messages.Constraint``.
        source: checked.
        whitespace: most white space characters in a row in JSON.
    """
    match kind:
        case "json_schema":
            return arguments(json.loads(source), whitespace)
        case "json_object":
            return arguments({"type": "object"}, whitespace)
        case "regex":
            return {"type": "regex", "pattern": source}
        case "choice":
            return either(*map(text, json.loads(source)))
        case "ebnf":
            return {"type": "grammar", "grammar": source}
        case "structural_tag":
            return json.loads(source)["format"]
    raise ValueError(f"unknown kind of constraint {kind}")


def source(format: Tag) -> str:
    """The whole structural tag as the text of a constraint."""
    return json.dumps({"type": "structural_tag", "format": format}, ensure_ascii=False)
