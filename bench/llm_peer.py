"""llama.cpp through the low-level interface of llama-cpp-python, in a process of its own.

Runs with the Python that has the package (``make bench-llm-cpu PEER_PYTHON=...``), so it imports
nothing of Antiphon. One JSON object a line: ``{"prefill": [ids]}`` answers the seconds until the
first greedy token is known, ``{"decode": [[ids], ...], "steps": n}`` the seconds of each step
that draws one greedy token for every row.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp  # pyright: ignore[reportMissingImports]  # the peer's Python has it
import numpy as np

CONTEXT_TOKENS = 8192
BATCH_TOKENS = 512


class Peer:
    """One model and one context."""

    def __init__(self, path: str, threads: int, rows: int) -> None:
        llama_cpp.llama_backend_init()
        # Its reports would come between the answers.
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = CONTEXT_TOKENS, rows
        settings.n_batch = settings.n_ubatch = BATCH_TOKENS
        settings.n_threads = settings.n_threads_batch = threads
        self._context: Any = llama_cpp.llama_init_from_model(model, settings)
        if not model or not self._context:
            raise RuntimeError(f"the peer cannot load {path}")
        self._memory: Any = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch: Any = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def prefill(self, ids: list[int]) -> float:
        """Seconds from an empty cache to the first token of one row."""
        llama_cpp.llama_memory_clear(self._memory, True)
        started = time.perf_counter()
        self._feed(0, ids)
        return time.perf_counter() - started

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        """Seconds of each step after the prompts are in the cache."""
        llama_cpp.llama_memory_clear(self._memory, True)
        tokens = [self._feed(row, ids) for row, ids in enumerate(prompts)]
        spent = []
        for step in range(steps):
            started = time.perf_counter()
            for row, token in enumerate(tokens):
                self._place(row, token, row, len(prompts[row]) + step, True)
            self._run(len(tokens))
            tokens = [self._greedy(row) for row in range(len(tokens))]
            spent.append(time.perf_counter() - started)
        return spent

    def _feed(self, row: int, ids: list[int]) -> int:
        for begin in range(0, len(ids), BATCH_TOKENS):
            part = ids[begin : begin + BATCH_TOKENS]
            for index, token in enumerate(part):
                position = begin + index
                self._place(index, token, row, position, position == len(ids) - 1)
            self._run(len(part))
        return self._greedy((len(ids) - 1) % BATCH_TOKENS)

    def _place(self, index: int, token: int, row: int, position: int, read: bool) -> None:
        batch = self._batch
        batch.token[index], batch.pos[index] = token, position
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
        batch.logits[index] = read

    def _run(self, count: int) -> None:
        self._batch.n_tokens = count
        fault = llama_cpp.llama_decode(self._context, self._batch)
        if fault:
            raise RuntimeError(f"llama_decode failed with {fault}")

    def _greedy(self, index: int) -> int:
        logits: Any = llama_cpp.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    peer = Peer(options.model, options.threads, options.rows)
    features = llama_cpp.llama_print_system_info().decode()
    print(json.dumps({"version": llama_cpp.__version__, "features": features}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer: float | list[float]
        if "prefill" in request:
            answer = peer.prefill(request["prefill"])
        else:
            answer = peer.decode(request["decode"], request["steps"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
