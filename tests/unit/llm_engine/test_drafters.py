"""Drafting with an external model, and what all drafters with weights of their own share."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.messages import Sampling, Submit
from antiphon_llm.speculation.build import DrafterMismatch
from antiphon_llm.speculation.cells import CellMarks
from transformers import Qwen3ForCausalLM

from .drafting import (
    SHAPE,
    VOCABULARY,
    Eagle3Reference,
    MtpReference,
    add_tensors,
    near,
    qwen_names,
    save_eagle3,
    scale,
    served,
    served_on_device,
    submits,
    target,
)

GREEDY = {"temperature": 0.0, "ignore_eos": True}


def imitating(model: Any) -> MtpReference:
    """Makes a target think in its last layer alone, and a head that has the same layer over the
    same embeddings, disturbed a little by the hidden state: often right, not always."""
    last, size = model.model.layers[-1], SHAPE["hidden_size"]
    with torch.no_grad():
        for layer in model.model.layers[:-1]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding = model.model.embed_tokens.weight
        embedding.div_(embedding.pow(2).mean(dim=1, keepdim=True).sqrt())
        reference = MtpReference(embedding.detach(), model.lm_head.weight.detach(), norms=True)
        scale(reference, 5)
        reference.layers[0].load_state_dict(last.state_dict())
        reference.norm.weight.copy_(model.model.norm.weight)
        reference.pre_fc_norm_embedding.weight.fill_(1.0)
        reference.fc.weight.mul_(0.1)
        reference.fc.weight[:, :size] = torch.eye(size)
    return reference


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One target with an MTP head inside, and draft checkpoints for it."""
    root = tmp_path_factory.mktemp("drafters")
    model = target(root / "target", layers=4)
    head = imitating(model)
    model.save_pretrained(root / "target")
    add_tensors(root / "target", qwen_names(head))
    embedding = model.model.embed_tokens.weight.detach()
    eagle = Eagle3Reference(embedding, torch.arange(VOCABULARY))
    scale(eagle, 6)
    save_eagle3(root / "eagle3", eagle)
    near(root / "model", model, noise=0.03)
    return {name: root / name for name in ("target", "eagle3", "model")}


def drafting(paths: dict[str, Path], endpoint: Any, drafter: str, **fields: Any) -> Any:
    own = {"drafter": drafter, "draft_depth": 4}
    if drafter in paths:
        own["draft_model_path"] = str(paths[drafter])
    return served(paths["target"], endpoint, **{**own, **fields})


@pytest.fixture(scope="module")
def continuation(paths: dict[str, Path]) -> Callable[[list[int], int], list[int]]:
    """The draft model's greedy continuation, as transformers has it."""
    model = Qwen3ForCausalLM.from_pretrained(paths["model"]).eval()

    def go_on(tokens: list[int], count: int) -> list[int]:
        ids = list(tokens)
        with torch.no_grad():
            for _ in range(count):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(tokens) :]

    return go_on


def assert_continued(go_on: Callable[[list[int], int], list[int]], recorded: list[Any]) -> None:
    assert len(recorded) > 3
    for row in recorded:
        assert len(row.drafts) == row.depth, row.request_id
    for row in recorded[:: 1 + len(recorded) // 40]:
        assert row.drafts == go_on(row.tokens, row.depth), row.tokens


@pytest.mark.parametrize("depth", [1, 4, 9])
def test_a_models_drafts_are_its_greedy_continuation(
    paths: dict[str, Path], endpoint_type: Any, continuation: Any, depth: int
) -> None:
    """Depth 9 goes through three entries of four tokens."""
    engine = drafting(paths, endpoint_type(), "model", draft_depth=depth)
    engine.run(submits(10, sampled=0.0, repetition_penalty=1.0, frequency_penalty=0.0))
    assert_continued(continuation, engine.drafted)


def test_a_cached_prefix_is_caught_up_where_the_draft_model_has_not_seen_it(
    paths: dict[str, Path], endpoint_type: Any, continuation: Any
) -> None:
    engine = drafting(paths, endpoint_type(), "model")
    counters = engine.loop.speculation.drafter.counters
    shared = [(7 * place) % 90 for place in range(33)]
    caught_up = {}
    for name, tail, depth in (("quiet", [5], 0), ("a", [1, 2, 3], -1), ("b", [80, 9], -1)):
        before, drafts = counters["draft: caught up"], len(engine.drafted)
        settings = Sampling(max_tokens=12, draft_depth=depth, **GREEDY)
        engine.submit([Submit(name, shared[:29] + tail, settings)])
        while engine.loop.busy and len(engine.drafted) == drafts:
            engine.step()
        caught_up[name] = counters["draft: caught up"] - before
        engine.run()
    assert [engine.ends[name].cached_tokens for name in ("quiet", "a", "b")] == [0, 28, 28]
    # All of "a", whose cached entries have no cells; of "b" only what "a" did not compute.
    assert caught_up == {"quiet": 0, "a": 29 + 3 + 1, "b": 29 + 2 + 1 - 28}
    assert_continued(continuation, engine.drafted)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_cells_of_accepted_guesses_stay(
    paths: dict[str, Path], endpoint_type: Any, depth: int
) -> None:
    """min(n + 1, K) of them: the next draft feeds one token, or two after a full acceptance."""
    engine = drafting(paths, endpoint_type(), "model", draft_depth=depth)
    counters = engine.loop.speculation.drafter.counters
    counters["draft: caught up"] = 0
    engine.run([Submit("one", [3, 1, 4], Sampling(max_tokens=85, **GREEDY))])
    full = 0
    for row, after in pairwise(engine.drafted):
        full += len(after.tokens) - len(row.tokens) == depth + 1
    assert full and engine.rejected
    assert counters["draft: caught up"] == 3 + len(engine.drafted) + full


def test_parked_and_preempted_requests_go_on_with_the_cells_they_have(
    paths: dict[str, Path], endpoint_type: Any, continuation: Any
) -> None:
    computed = {}
    for parked_bytes in (0, 1 << 20):
        engine = drafting(
            paths,
            endpoint_type(),
            "model",
            kv_entries=26,
            max_rows=3,
            prefix_cache=False,
            parked_bytes=parked_bytes,
        )
        chance = random.Random(5)
        prompts = [[chance.randrange(90) for _ in range(30)] for _ in range(6)]
        settings = [Sampling(max_tokens=n, **GREEDY) for n in (20, 40)]
        engine.submit(
            [Submit(f"b{n}", p, settings[0], interactive=False) for n, p in enumerate(prompts[:3])]
        )
        for _ in range(8):
            engine.step()
        engine.run([Submit(f"i{n}", p, settings[1]) for n, p in enumerate(prompts[3:])])
        scheduler = engine.loop.scheduler
        assert scheduler.preemptions and bool(scheduler.parking.parked_total) == bool(parked_bytes)
        assert_continued(continuation, engine.drafted)
        computed[parked_bytes] = engine.loop.speculation.drafter.counters["draft: caught up"]
    assert computed[1 << 20] <= computed[0] - 30


def test_a_target_that_drafts_for_itself_is_always_right(
    paths: dict[str, Path], endpoint_type: Any
) -> None:
    """Sampled drafts too: they share the noise, the filters and the penalties of the draw."""
    messages = submits(30, ignore_eos=True)
    plain = served(paths["target"], endpoint_type()).run(messages)
    itself = {**paths, "model": paths["target"]}
    for depth in (1, 3, 7):
        engine = drafting(itself, endpoint_type(), "model", draft_depth=depth).run(messages)
        assert engine.tokens == plain.tokens
        assert engine.rejected == 0 and engine.accepted > 200


def test_a_target_that_drafts_for_itself_keeps_to_its_constraints(
    paths: dict[str, Path], endpoint_type: Any
) -> None:
    messages = submits(
        12, ignore_eos=True, allowed_token_ids=list(range(0, 90, 2)), no_repeat_ngram_size=2
    )
    itself = {**paths, "model": paths["target"]}
    plain = served(paths["target"], endpoint_type()).run(messages)
    engine = drafting(itself, endpoint_type(), "model").run(messages)
    assert engine.tokens == plain.tokens
    assert engine.rejected == 0 and engine.accepted > 100


DRAFTERS = ["model", "mtp", "eagle3"]


@pytest.mark.parametrize("drafter", ["itself", "model", "mtp", "eagle3"])
def test_residual_acceptance_leaves_greedy_text_and_seeds_alone(
    paths: dict[str, Path], endpoint_type: Any, drafter: str
) -> None:
    """A target that drafts for itself gives each draft the very probability that it has."""
    greedy = submits(8, sampled=0.0, ignore_eos=True)
    seeded = submits(8, sampled=1.0, seed=5, ignore_eos=True, seeded=True)
    free = submits(8, sampled=1.0, seed=6, ignore_eos=True)
    named = [
        Submit(f"{kind}{item.request_id}", item.prompt_ids, item.sampling)
        for kind, items in (("g", greedy), ("s", seeded), ("f", free))
        for item in items
    ]
    if drafter == "itself":
        paths, drafter = {**paths, "model": paths["target"]}, "model"
    itself = paths["model"] == paths["target"]
    plain = served(paths["target"], endpoint_type()).run(named)
    engine = drafting(paths, endpoint_type(), drafter, draft_accept="residual").run(named)
    for name, tokens in plain.tokens.items():
        assert name[0] == "f" or engine.tokens[name] == tokens, name
    assert any(engine.tokens[name] != plain.tokens[name] for name in plain.tokens)
    free_ends = [end for name, end in engine.ends.items() if name[0] == "f"]
    assert sum(end.accepted_drafts + end.rejected_drafts for end in free_ends) > 50
    if itself:
        assert engine.rejected == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_drafting_changes_no_token(
    paths: dict[str, Path], endpoint_type: Any, drafter: str, overlap_depth: int
) -> None:
    """Prefix hits, preemptions, stops inside a window and short contexts among them."""
    messages = submits(18)
    fields = {"kv_entries": 34, "overlap_depth": overlap_depth, "context_limit": 48}
    plain = served(paths["target"], endpoint_type(), **fields).run(messages)
    for depth, max_rows in ((1, 2), (5, 6)):
        engine = drafting(
            paths, endpoint_type(), drafter, draft_depth=depth, max_rows=max_rows, **fields
        ).run(messages)
        assert engine.tokens == plain.tokens
        assert {name: end.reason for name, end in engine.ends.items()} == {
            name: end.reason for name, end in plain.ends.items()
        }
        assert engine.accepted + engine.rejected > 50


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_the_path_of_accelerators_drafts_the_same(
    paths: dict[str, Path], endpoint_type: Any, drafter: str, overlap_depth: int
) -> None:
    """Prompts beside verify rows, and recorded steps: what is drafted depends on tokens alone."""
    messages = submits(14, sampled=0.3)
    own = {"drafter": drafter, "draft_depth": 3}
    if drafter in paths:
        own["draft_model_path"] = str(paths[drafter])
    plain = served(paths["target"], endpoint_type()).run(messages)
    host = served(paths["target"], endpoint_type(), **own).run(messages)
    device = served_on_device(
        paths["target"], endpoint_type(), overlap_depth=overlap_depth, **own
    ).run(messages)
    assert device.tokens == plain.tokens == host.tokens
    assert _by_context(device) == _by_context(host)


def _by_context(engine: Any) -> dict[tuple[int, ...], list[int]]:
    return {tuple(row.tokens): row.drafts for row in engine.drafted}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_two_hundred_prompts_are_equal_byte_for_byte(
    paths: dict[str, Path], endpoint_type: Any, drafter: str
) -> None:
    messages = submits(200, sampled=0.0, seed=17, max_tokens=40)
    plain = served(paths["target"], endpoint_type()).run(messages)
    engine = drafting(paths, endpoint_type(), drafter).run(messages)
    assert engine.tokens == plain.tokens
    if drafter != "eagle3":
        assert 0.1 < engine.acceptance < 0.95
    print(
        f"{drafter}: {engine.acceptance:.1%} of drafts accepted, {engine.steps} steps "
        f"for {plain.steps}"
    )


def test_memory_is_counted_and_the_pool_shrinks_by_it(
    paths: dict[str, Path], endpoint_type: Any
) -> None:
    def hello(**fields: Any) -> Any:
        endpoint = endpoint_type()
        served(paths["target"], endpoint, **fields)
        return next(item for item in endpoint.sent if type(item).__name__ == "Hello")

    plain = hello()
    assert plain.memory["drafter"] == 0
    for drafter in DRAFTERS:
        own = {"draft_model_path": str(paths[drafter])} if drafter in paths else {}
        told = hello(drafter=drafter, draft_depth=3, **own)
        assert told.memory["drafter"] > 0
        assert told.memory["weights"] > plain.memory["weights"]
        assert told.entry_bytes > plain.entry_bytes
        assert told.kv_bytes > told.entry_bytes * (told.kv_entries + 1)


def test_a_draft_model_of_another_tokenizer_is_refused_by_name(
    paths: dict[str, Path], tmp_path: Path, endpoint_type: Any
) -> None:
    other = tmp_path / "other"
    target(other, layers=1, seed=1)
    (other / "tokenizer.json").write_text("{}")
    with pytest.raises(DrafterMismatch, match="a draft model must have the same tokenizer files"):
        drafting({**paths, "model": other}, endpoint_type(), "model")


class TestCellMarks:
    UNIT = 4

    @pytest.fixture
    def tables(self) -> BlockTables:
        return BlockTables(EntryAllocator(40), rows=4, entry_tokens=self.UNIT, context_limit=64)

    def test_a_run_grows_over_entries_and_ends_where_it_was_cut(self, tables: BlockTables) -> None:
        marks, row = CellMarks(tables), tables.open()
        tables.extend(row, 20)
        marks.mark(row, 0, 7)
        assert [marks.run_from_start(row, limit) for limit in (20, 5, 4, 20)] == [7, 5, 4, 7]
        marks.mark(row, 7, 15)
        assert marks.run_from_start(row, 20) == 15
        marks.mark(row, 9, 11)
        assert marks.run_from_start(row, 20) == 11
        assert marks.run_before(row, 11) == 0 and marks.run_before(row, 10) == 10

    def test_a_gap_begins_a_run_anew(self, tables: BlockTables) -> None:
        marks, row = CellMarks(tables), tables.open()
        tables.extend(row, 32)
        marks.mark(row, 0, 9, first=1)
        assert marks.run_before(row, 9) == 1 and marks.run_from_start(row, 9) == 0
        marks.mark(row, 14, 22, first=15)
        assert marks.run_before(row, 22) == 15
        assert marks.reaches(row, 21) and not marks.reaches(row, 12)

    def test_notes_go_with_shared_entries_and_end_with_their_lives(
        self, tables: BlockTables
    ) -> None:
        marks, first = CellMarks(tables), tables.open()
        tables.extend(first, 12)
        marks.mark(first, 0, 12)
        entries = tables.detach(first)
        second = tables.open()
        tables.adopt(second, entries)
        assert marks.run_from_start(second, 12) == 12
        tables.allocator.give_back(tables.detach(second))
        third = tables.open()
        tables.extend(third, 12)
        assert marks.run_from_start(third, 12) == 0 and marks.run_before(third, 12) == 12

    def test_what_came_back_from_host_memory_counts_but_for_shared_entries(
        self, tables: BlockTables
    ) -> None:
        marks, first = CellMarks(tables), tables.open()
        tables.extend(first, 8)
        marks.mark(first, 0, 6)
        shared = tables.detach(first)
        second = tables.open()
        tables.adopt(second, shared)
        tables.extend(second, 16)
        marks.restore(second, 0, 15)
        # The shared second entry has only two of its four cells, and nobody brought it back.
        assert marks.run_from_start(second, 15) == 6
        assert marks.run_before(second, 15) == 8

    def test_any_history_agrees_with_a_plain_record_of_cells(self, tables: BlockTables) -> None:
        chance = random.Random(6)
        marks = CellMarks(tables)
        for _ in range(60):
            row = tables.open()
            tables.extend(row, 40)
            cells, length = [False] * 40, 0
            while length < 36:
                start = length if chance.random() < 0.8 else max(0, length - 1)
                start += chance.random() < 0.15
                end = start + chance.randrange(1, 9)
                end = min(end, 40)
                skipped = chance.random() < 0.1
                marks.mark(row, start, end, first=min(end, start + skipped))
                for place in range(length if start > length else start, end):
                    cells[place] = start + skipped <= place
                cells[end:] = [False] * (40 - end)
                length = end
                run = end
                while run and cells[run - 1]:
                    run -= 1
                assert marks.run_before(row, end) == run
            tables.close(row)
