"""The ledger of the host's memory closes, and every owner holds what was foreseen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from antiphon_llm.engine import host_boot
from antiphon_llm.engine.boot import BootPhases, boot
from antiphon_llm.engine.host_memory import HostLedger, LedgerMismatch
from antiphon_llm.kvcache.sizing import PoolTooSmall
from antiphon_llm.messages import EngineConfig, Hello
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def ledger(**fields: int) -> HostLedger:
    values = {"available": 10_000, "weights": 500, "workspace": 1000, "logits": 200,
              "reserved": 300, "parked": 400, **fields}  # fmt: skip
    return HostLedger(share=0.5, **values)


def test_owners_and_the_room_make_up_the_share() -> None:
    found = ledger()
    others = sum(row.predicted for row in found.rows if row.name != "weights")
    assert found.kv_room + others == 5000
    assert ledger(available=1000).kv_room == 500 - others
    assert all(row.name in found.table() for row in found.rows)


def test_another_amount_than_foreseen_is_named() -> None:
    ledger().check({"workspace": 1000, "logits": 200})
    with pytest.raises(LedgerMismatch, match="logits holds 201 bytes, 200"):
        ledger().check({"workspace": 1000, "logits": 201})


@pytest.mark.parametrize(("max_rows", "step_tokens"), [(1, 17), (8, 64), (8, 65), (3, 300)])
def test_a_booted_engine_holds_what_it_foresaw(
    checkpoint: Path, endpoint_type, max_rows: int, step_tokens: int
) -> None:
    endpoint = endpoint_type()
    config = EngineConfig(
        model_path=str(checkpoint), threads=1, max_rows=max_rows, step_tokens=step_tokens,
        prefill_chunk=step_tokens,
    )  # fmt: skip
    loop = boot(config, endpoint, BootPhases(endpoint))
    hello = next(message for message in endpoint.sent if isinstance(message, Hello))
    runner = loop.runner
    assert hello.memory["workspace"] == runner._model.workspace.nbytes
    assert hello.memory["logits"] == runner._logits[-1].nbytes
    assert hello.memory["kv"] == hello.kv_bytes
    assert hello.memory["weights"] == hello.weight_bytes


def test_memory_left_to_others_narrows_the_pool_and_a_typed_size_refuses(
    checkpoint: Path, endpoint_type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_boot, "available_bytes", lambda: 1 << 30)

    def entries(**fields: int) -> int:
        endpoint = endpoint_type()
        config = EngineConfig(model_path=str(checkpoint), threads=1, **fields)
        boot(config, endpoint, BootPhases(endpoint))
        return next(m.kv_entries for m in endpoint.sent if isinstance(m, Hello))

    assert entries() == 8 * 16  # Every row's full context.
    room = int(0.9 * (1 << 30)) - (256 << 20)
    assert entries(reserved_bytes=room - (2 << 20)) < 8 * 16
    with pytest.raises(PoolTooSmall, match="reserved"):
        entries(reserved_bytes=room - (2 << 20), kv_entries=8 * 16)
