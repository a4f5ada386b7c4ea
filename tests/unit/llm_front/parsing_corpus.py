"""Outputs of each family, made from the public formats, and what they mean."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antiphon_llm.front.parsing.base import ToolSpec
from antiphon_llm.front.schema_gate import gate_schema

TOOLS = {
    name: ToolSpec(name, schema, gate_schema(schema, strict=True).schema)
    for name, schema in (
        (
            "get_weather",
            {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"enum": ["metric", "imperial"]},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        ),
        (
            "search",
            {
                "type": "object",
                "properties": {
                    "query": {"type": "string"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "filter": {
                        "type": "object",
                        "properties": {"exact": {"type": "boolean"}, "limit": {"type": "number"}},
                        "additionalProperties": False,
                    },
                },
                "required": ["query", "tags"],
                "additionalProperties": False,
            },
        ),
        ("now", {"type": "object", "properties": {}, "additionalProperties": False}),
    )
}

WORDS = (
    "Oslo", "São Paulo", "東京", "a{b", "c}d", 'say "hi"', "it's", "back\\slash", "line\nbreak",
    "<tool_call>", "</parameter", "[TOOL_CALLS", "tab\there", "é🙂", "]", "<|end", "x, y=(1)",
    "<escape", "```", "null", "5", "",
)  # fmt: skip
TEXTS = (
    "", "Let me look.", "Sure! ", "I think {maybe} [this] < that.", "多分 🙂", "a <tool b",
    "`code`",
)  # fmt: skip

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Sample:
    """An output and its meaning."""

    text: str
    content: str
    calls: list[Call]


def arguments(name: str, rng: random.Random, *, words: tuple[str, ...]) -> dict[str, Any]:
    if name == "now":
        return {}
    if name == "get_weather":
        found: dict[str, Any] = {"city": rng.choice(words)}
        if rng.random() < 0.5:
            found["days"] = rng.randrange(-3, 9999)
        if rng.random() < 0.5:
            found["units"] = rng.choice(["metric", "imperial"])
        return found
    found = {"query": rng.choice(words), "tags": rng.choices(words, k=rng.randrange(3))}
    if rng.random() < 0.5:
        found["filter"] = {"exact": rng.random() < 0.5, "limit": rng.choice([1, 2.5, -3e-5])}
    return found


def dump(value: Any, rng: random.Random) -> str:
    return json.dumps(value, ensure_ascii=rng.random() < 0.3, indent=rng.choice([None, None, 2]))


def plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def gemma_value(value: Any, quote: str = "<escape>") -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, list):
        return "[" + ",".join(gemma_value(item, quote) for item in value) + "]"
    if isinstance(value, dict):
        members = (f"{key}:{gemma_value(item, quote)}" for key, item in value.items())
        return "{" + ",".join(members) + "}"
    return json.dumps(value)


def python_call(name: str, args: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})"


def json_object(
    call: Call, rng: random.Random, key: str = "arguments", *, free: bool = True
) -> str:
    args = dump(call[1], rng)
    if free and rng.random() < 0.2:
        return f'{{"{key}": {args}, "name": "{call[0]}"}}'
    return f'{{"name": "{call[0]}", "{key}": {args}}}'


def function_xml(call: Call) -> str:
    inside = "".join(
        f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in call[1].items()
    )
    return f"<tool_call>\n<function={call[0]}>\n{inside}</function>\n</tool_call>"


def argument_xml(call: Call) -> str:
    inside = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n"
        for key, value in call[1].items()
    )
    return f"<tool_call>{call[0]}\n{inside}</tool_call>"


B, E, C, D, S = (
    f"<｜tool▁{part}｜>" for part in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)


def _write(family: str, calls: list[Call], rng: random.Random) -> str:
    def each(one: Callable[[Call], str], between: str) -> str:
        return between.join(map(one, calls))

    match family:
        case "json_tags":
            return each(lambda c: f"<tool_call>\n{json_object(c, rng)}\n</tool_call>", "\n")
        case "function_xml":
            return each(function_xml, "\n")
        case "argument_xml":
            return each(argument_xml, "\n")
        case "bracket_array":
            return f"[{each(lambda c: json_object(c, rng, free=False), ', ')}]"
        case "tagged_array":
            listed = f"[{each(lambda c: json_object(c, rng), ', ')}]"
            return f"<|tool_call|>{listed}<|/tool_call|>"
        case "mistral_list":
            return f"[TOOL_CALLS] [{each(lambda c: json_object(c, rng), ', ')}]"
        case "mistral_named":
            return each(lambda c: f"[TOOL_CALLS]{c[0]}[ARGS]{dump(c[1], rng)}", "")
        case "llama_json":
            return each(
                lambda c: "<|python_tag|>" + json_object(c, rng, "parameters", free=False), ""
            )
        case "llama_list":
            listed = f"[{each(lambda c: python_call(*c), ', ')}]"
            return f"<|python_start|>{listed}<|python_end|>"
        case "gemma_tool_code":
            return f"```tool_code\n{each(lambda c: python_call(*c), chr(10))}\n```"
        case "function_gemma":
            return each(
                lambda c: f"<start_function_call>call:{c[0]}{gemma_value(c[1])}<end_function_call>",
                "",
            )
        case "gemma4":
            quote = '<|"|>'
            return each(
                lambda c: f"<|tool_call>call:{c[0]}{gemma_value(c[1], quote)}<tool_call|>", ""
            )
        case "harmony":
            name, args = calls[0]
            return (
                f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
                f"{dump(args, rng)}<|call|>"
            )
        case "deepseek":
            return B + each(lambda c: f"{C}{c[0]}{S}{dump(c[1], rng)}{D}", "") + E
        case "deepseek_fenced":
            block = "{C}function{S}{name}\n```json\n{args}\n```{D}"
            return (
                B
                + each(lambda c: block.format(C=C, S=S, D=D, name=c[0], args=dump(c[1], rng)), "\n")
                + E
            )
    raise AssertionError(family)


def sample(family: str, seed: int) -> Sample:
    """A well-formed output."""
    rng = random.Random(f"{family}:{seed}")
    words = WORDS
    if family in ("function_xml", "argument_xml"):
        # Their strings are raw: a closing tag inside one cannot be told from the real one.
        words = tuple(word for word in WORDS if word != "<tool_call>")
    most = 1 if family == "harmony" else 3
    names = rng.choices(list(TOOLS), k=rng.choice([0, 1, 1, 2, 3][: most + 2]))
    calls = [(name, arguments(name, rng, words=words)) for name in names]
    text = "" if calls and family == "bracket_array" else rng.choice(TEXTS)
    if family == "harmony":
        return _harmony(text, calls[:1], rng)
    written = _write(family, calls, rng) if calls else ""
    return Sample(text + written, text, calls)


def _harmony(text: str, calls: list[Call], rng: random.Random) -> Sample:
    channel = "commentary" if calls else "final"
    parts = [f"<|channel|>{channel}<|message|>{text}<|end|>"]
    if calls:
        parts.append(f"<|start|>assistant{_write('harmony', calls, rng)}")
    return Sample("".join(parts), text, calls)


JUNK = ("{", "}", "[", "]", "<", "tool_call>", "</", '"', "\\", "\n", " ", "é", "|>", "(", "=")


def malformed(family: str, seed: int) -> str:
    """An output that is cut, spliced or strewn with what belongs elsewhere."""
    rng = random.Random(f"malformed:{family}:{seed}")
    text = sample(family, seed).text + sample(family, seed + 7919).text
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(JUNK) + text[place + rng.randrange(3) :]
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.5 else text
