"""Runs the models of lm-eval against a server; prints what it saw as one JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

URL, MODEL, TOKENIZER = sys.argv[1:]
PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " Berlin"),
    ("One, two, three,", " four, five, six"),
    ("Water boils at", " one hundred degrees Celsius, which is hot."),
]
UNTIL = {"until": ["\n", "Paris"], "max_gen_toks": 16, "temperature": 0}


def asked(kind: str, *requests: tuple[Any, ...]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=arguments, idx=index)
        for index, arguments in enumerate(requests)
    ]


def main() -> None:
    completions = LocalCompletionsAPI(
        model=MODEL,
        base_url=f"{URL}/completions",
        tokenizer_backend="huggingface",
        tokenizer=TOKENIZER,
        max_length=2048,
        batch_size=2,
        num_concurrent=1,
        max_retries=1,
    )
    chat = LocalChatCompletion(
        model=MODEL, base_url=f"{URL}/chat/completions", max_retries=1, num_concurrent=1
    )
    question = chat.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}]
    )
    ids = [completions._encode_pair(*pair) for pair in PAIRS]
    seen = {
        "ids": ids,
        "loglikelihoods": completions.loglikelihood(asked("loglikelihood", *PAIRS)),
        "rolling": completions.loglikelihood_rolling(
            asked("loglikelihood_rolling", ("The quick brown fox jumps over the lazy dog.",))
        ),
        "generated": completions.generate_until(
            asked("generate_until", ("The capital of France is", dict(UNTIL)))
        ),
        "chatted": chat.generate_until(
            asked("generate_until", (question, {"until": ["\n"], "max_gen_toks": 24}))
        ),
    }
    print(json.dumps(seen))


main()
