"""Constraints against the real engine and the default model, with drafts: the form always holds,
and what is wrong is told with its place."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from antiphon.llm.v1 import generate_pb2
from antiphon_core.errors import InvalidArgument
from antiphon_llm.__main__ import engine_worker
from llm_bench import Collected, LlmBench, chat, limit

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
Constraint = generate_pb2.Constraint


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlmBench]:
    cache: Path = tmp_path_factory.mktemp("models")
    made = LlmBench(
        cache,
        None,
        engine_worker,
        context_limit=1024,
        kv_entries=512,
        drafter="ngram",
        draft_depth=3,
    )
    await made.start()
    yield made
    await made.stop()


def asked(constraint: Constraint | None, seed: int = 1, **fields: Any) -> Any:
    fields.setdefault("sampling", generate_pb2.SamplingParams(temperature=0.9, seed=seed))
    fields.setdefault("stop", limit(200))
    return chat("Describe a person.", constraint=constraint, **fields)


def schema(value: Any, *, strict: bool = True) -> Constraint:
    text = value if isinstance(value, str) else json.dumps(value)
    return Constraint(json_schema=text, strict=strict)


async def refused(llm: LlmBench, constraint: Constraint, **fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        await llm.generate(asked(constraint, **fields))
    return caught.value


def ended(found: Collected) -> str:
    assert found.finished[0].reason == generate_pb2.FINISH_REASON_STOP
    return found.text()


async def test_outputs_of_a_strict_schema_are_valid_side_by_side_with_plain_ones(
    llm: LlmBench,
) -> None:
    requests = [asked(schema(PERSON), seed=seed) for seed in range(6)]
    plain = [asked(None, seed=seed, stop=limit(20)) for seed in range(3)]
    found = await asyncio.gather(*map(llm.generate, requests + plain))
    for answer in found[:6]:
        jsonschema.validate(json.loads(ended(answer)), PERSON)
        assert not answer.accepted[0].notes
    assert len({answer.text() for answer in found[:6]}) > 1
    alone = await llm.generate(plain[0])
    assert alone.text() == found[6].text()


async def test_each_choice_has_its_own_grammar(llm: LlmBench) -> None:
    found = await llm.generate(asked(schema(PERSON), choice_count=3))
    texts = [found.text(choice) for choice in range(3)]
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    assert len(set(texts)) == 3


async def test_greedy_output_is_valid_too(llm: LlmBench) -> None:
    greedy = generate_pb2.SamplingParams(temperature=0)
    answer = await llm.generate(asked(schema(PERSON), sampling=greedy))
    jsonschema.validate(json.loads(ended(answer)), PERSON)


async def test_any_object_is_an_object_with_bounded_blanks(llm: LlmBench) -> None:
    for seed in range(4):
        found = await llm.generate(asked(Constraint(json_object=True), seed=seed))
        assert found.text().startswith("{")
        assert not re.search(r"\s{17}", re.sub(r'"(\\.|[^"\\])*"', '""', found.text()))
        if found.finished[0].reason == generate_pb2.FINISH_REASON_STOP:
            assert isinstance(json.loads(found.text()), dict)


async def test_expressions_choices_and_grammars_hold(llm: LlmBench) -> None:
    pattern = r"[A-Z][a-z]{2,9}, (19|20)\d{2}"
    assert re.fullmatch(pattern, ended(await llm.generate(asked(Constraint(regex=pattern)))))
    values = ["yes", "no", 'per"haps', "peut-être"]
    choice = Constraint(choice=generate_pb2.ChoiceList(values=values))
    for seed in range(3):
        assert ended(await llm.generate(asked(choice, seed=seed))) in values
    grammar = 'root ::= item ("; " item){2}\nitem ::= [a-z]{1,12} " " [0-9]{1,3}'
    answer = ended(await llm.generate(asked(Constraint(ebnf=grammar))))
    assert re.fullmatch(r"[a-z]{1,12} \d{1,3}(; [a-z]{1,12} \d{1,3}){2}", answer)


async def test_a_structural_tag_is_checked_and_holds(llm: LlmBench) -> None:
    form = {
        "type": "tag",
        "begin": "<person>",
        "content": {"type": "json_schema", "json_schema": PERSON},
        "end": "</person>",
    }
    tag = Constraint(structural_tag=json.dumps({"type": "structural_tag", "format": form}))
    answer = ended(await llm.generate(asked(tag)))
    inner = answer.removeprefix("<person>").removesuffix("</person>")
    jsonschema.validate(json.loads(inner), PERSON)
    form["content"]["json_schema"] = {"not": {}}
    tag = json.dumps({"type": "structural_tag", "format": form})
    error = await refused(llm, Constraint(structural_tag=tag, strict=True))
    assert (error.field, error.metadata["keyword"]) == ("constraint.structural_tag", "not")


async def test_a_keyword_that_is_not_enforced_is_refused_when_strict_and_named_when_not(
    llm: LlmBench,
) -> None:
    loose = {**PERSON, "properties": {**PERSON["properties"]}}
    loose["properties"]["tags"] = {**PERSON["properties"]["tags"], "uniqueItems": True}
    error = await refused(llm, schema(loose))
    assert error.field == "constraint.json_schema"
    assert error.metadata["pointer"] == "/properties/tags/uniqueItems"
    assert error.metadata["keyword"] == "uniqueItems"
    found = await llm.generate(asked(schema(loose, strict=False)))
    jsonschema.validate(json.loads(ended(found)), PERSON)
    assert len(found.accepted[0].notes) == 1
    assert "/properties/tags/uniqueItems" in found.accepted[0].notes[0]


@pytest.mark.parametrize(
    ("constraint", "field", "words"),
    [
        (schema("{"), "constraint.json_schema", "not valid JSON"),
        (schema({"type": "text"}), "constraint.json_schema", "type"),
        (schema(False), "constraint.json_schema", "no value can satisfy"),
        (Constraint(json_object=False), "constraint.json_object", "false"),
        (Constraint(regex="(a"), "constraint.regex", "not closed"),
        (Constraint(regex="(?=a)"), "constraint.regex", "(?"),
        (Constraint(ebnf="root ::= missing"), "constraint.ebnf", "missing"),
        (Constraint(structural_tag='{"format": {"type": "?"}}'), "constraint.structural_tag", ""),
        (Constraint(choice=generate_pb2.ChoiceList()), "constraint.choice.values", "at least one"),
        (
            Constraint(choice=generate_pb2.ChoiceList(values=["a", "a"])),
            "constraint.choice.values[1]",
            "twice",
        ),
        (Constraint(regex="a" * (1 << 18) + "b"), "constraint.regex", "allowed are"),
        (schema("[" * 400 + "]" * 400), "constraint.json_schema", "nested"),
    ],
)
async def test_what_does_not_compile_is_told_with_its_field(
    llm: LlmBench, constraint: Constraint, field: str, words: str
) -> None:
    error = await refused(llm, constraint)
    assert error.field == field
    assert words in error.message


async def test_settings_that_leave_no_room_for_an_end_are_refused(llm: LlmBench) -> None:
    error = await refused(llm, schema(PERSON), stop=limit(9, ignore_eos=True))
    assert error.field == "stop.ignore_eos"
    sampling = generate_pb2.SamplingParams(min_tokens=5)
    assert (await refused(llm, schema(PERSON), sampling=sampling)).field == "sampling.min_tokens"


async def test_a_request_that_goes_away_while_it_compiles_leaves_nothing(llm: LlmBench) -> None:
    slow = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    for place in range(8):
        slow["properties"][f"p{place}"] = {"type": "string", "maxLength": 60 + place}
    calls = [llm.stub.Generate(asked(schema(slow), seed=seed)) for seed in range(3)]
    engine = llm.front._engine
    assert engine is not None
    async with asyncio.timeout(30):
        while engine.waiting < len(calls):
            await asyncio.sleep(0.01)
    for call in calls:
        call.cancel()
    answer = await llm.generate(asked(Constraint(regex="[ab]{3}")))
    assert re.fullmatch("[ab]{3}", ended(answer))
    assert engine.running == engine.waiting == 0
