"""Texts of the batch engine: transformers' tokens, alone as among others, and what ends early."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from antiphon_vocoder.recognition.whisper.backend import Attempt, Generated, never
from antiphon_vocoder.recognition.whisper.features import RATE, LogMel
from antiphon_vocoder.recognition.whisper.opening import packaged_model
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary
from antiphon_vocoder.recognition.whisper_torch import engine
from antiphon_vocoder.recognition.whisper_torch.alignment import warping_path
from antiphon_vocoder.recognition.whisper_torch.backend import TorchBackend
from antiphon_vocoder.recognition.whisper_torch.rules import TokenRules
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    WhisperForConditionalGeneration,
)
from transformers.generation import GenerationMixin
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.models.whisper import generation_whisper

from bench.whisper_checkpoints import (
    END,
    NO_TIMESTAMPS,
    PREVIOUS,
    START,
    random_checkpoint,
)

ROOM = 16
LANES = 6
PLAIN = [START, NO_TIMESTAMPS]
PREVIOUSLY = [PREVIOUS, 11, 12, 13, 14, 15, *PLAIN]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("whisper"), end_like=(36776, 1.02))


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> WhisperForConditionalGeneration:
    return WhisperForConditionalGeneration.from_pretrained(checkpoint).eval()


@pytest.fixture(scope="module")
def backend(checkpoint: Path) -> Iterator[TorchBackend]:
    vocabulary = Vocabulary(checkpoint / "tokenizer.json")
    opened = TorchBackend(
        checkpoint, vocabulary, device="cpu", storage="auto", threads=2, lanes=LANES, beams=3
    )
    yield opened
    opened.close()


@contextmanager
def own_engine(
    backend: TorchBackend, monkeypatch: pytest.MonkeyPatch, rules: TokenRules
) -> Iterator[None]:
    """The backend with another engine over its model."""
    made = engine.Engine(backend._model, rules, LANES, beams=1)
    with monkeypatch.context() as patched:
        patched.setattr(backend, "engine", made)
        yield
    made.stop()


def sound(kind: int, seconds: float = 29.5) -> np.ndarray:
    """Long enough to be encoded whole, as transformers does."""
    time = np.arange(int(seconds * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * (200 * kind * time + 150 * kind * np.sin(time)))).astype("f4")


def decode(backend: TorchBackend, audio: np.ndarray, attempt: Attempt) -> Generated:
    with backend.encode(audio, never) as encoded:
        return encoded.generate(attempt)


def expected(
    oracle: WhisperForConditionalGeneration,
    audio: np.ndarray,
    prompt: Sequence[int],
    beams: int = 1,
    suppresses: bool = True,
) -> tuple[list[int], list[torch.Tensor]]:
    """Tokens without prompt and end, and the processed scores of each step."""
    config = GenerationConfig.from_dict(oracle.generation_config.to_dict())
    processors = LogitsProcessorList()
    if NO_TIMESTAMPS not in prompt:
        processors.append(WhisperTimeStampLogitsProcessor(config, begin_index=len(prompt)))
    if not suppresses:
        config.suppress_tokens = config.begin_suppress_tokens = None
    config.update(num_beams=beams, early_stopping=beams > 1, max_length=len(prompt) + ROOM)
    result = GenerationMixin.generate(
        oracle,
        torch.from_numpy(LogMel(80)(audio, 3000))[None],
        generation_config=config,
        logits_processor=processors,
        decoder_input_ids=torch.tensor([list(prompt)]),
        return_dict_in_generate=True,
        output_scores=True,
    )
    tokens = result.sequences[0, len(prompt) :].tolist()
    return tokens[: tokens.index(END)] if END in tokens else tokens, list(result.scores)


@pytest.mark.parametrize(
    ("prompt", "kind"), [(PLAIN, 7), ([START], 2), (PREVIOUSLY, 2)], ids=["plain", "timed", "after"]
)
def test_greedy_tokens_and_their_probability_are_those_of_transformers(
    backend: TorchBackend, oracle: WhisperForConditionalGeneration, prompt: list[int], kind: int
) -> None:
    wanted, scores = expected(oracle, sound(kind), prompt)
    got = decode(backend, sound(kind), Attempt(prompt, 0.0, 1, len(prompt) + ROOM))
    assert got.tokens == wanted
    assert len(wanted) < ROOM or kind != 7, "no text ends early"
    chosen = [*wanted, END][: len(scores)]
    logprobs = [s.log_softmax(1)[0, t] for s, t in zip(scores, chosen, strict=True)]
    assert got.logprob == pytest.approx(float(sum(logprobs)) / (len(wanted) + 1), abs=1e-4)


def test_beams_are_those_of_transformers(
    backend: TorchBackend,
    oracle: WhisperForConditionalGeneration,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its beams rank tokens by probabilities before suppression, so nothing is suppressed here.
    rules = replace(backend._rules, suppressed=(), suppressed_first=())
    with own_engine(backend, monkeypatch, rules):
        wanted, _ = expected(oracle, sound(3), PLAIN, beams=3, suppresses=False)
        attempt = Attempt(PLAIN, 0.0, 3, len(PLAIN) + ROOM)
        assert decode(backend, sound(3), attempt).tokens == wanted
        assert len(wanted) < ROOM, "no text ends early"


ATTEMPTS = [
    (1, 3.0, Attempt(PLAIN, 0.0, 1, 14)),
    (2, 9.0, Attempt([START], 0.0, 3, 18)),
    (3, 1.0, Attempt(PREVIOUSLY, 0.8, 1, 16)),
    (4, 12.0, Attempt(PLAIN, 1.0, 1, 10)),
    (5, 5.0, Attempt([START], 0.0, 1, 20)),
    (6, 2.0, Attempt(PLAIN, 0.0, 2, 12)),
]


def test_a_text_is_the_same_bits_alone_and_among_others(backend: TorchBackend) -> None:
    alone = [decode(backend, sound(kind, s), attempt) for kind, s, attempt in ATTEMPTS]
    steps = backend.engine.steps
    with ThreadPoolExecutor(len(ATTEMPTS)) as pool:
        futures = [pool.submit(decode, backend, sound(k, s), a) for k, s, a in ATTEMPTS]
        assert [future.result(60) for future in futures] == alone
    assert len({tuple(text.tokens) for text in alone}) == len(ATTEMPTS)
    together = backend.engine.steps - steps
    assert together < sum(len(text.tokens) for text in alone), "nothing ran in a batch"


def test_equal_attempts_at_different_audio_leave_in_any_order(backend: TorchBackend) -> None:
    attempt = Attempt(PLAIN, 0.0, 1, len(PLAIN) + ROOM)
    kinds = (1, 7, 2, 7, 3, 7)
    alone = {kind: decode(backend, sound(kind), attempt) for kind in kinds}
    with ThreadPoolExecutor(len(kinds)) as pool:
        futures = [pool.submit(decode, backend, sound(kind), attempt) for kind in kinds]
        assert [future.result(60) for future in futures] == [alone[kind] for kind in kinds]
    assert len(alone[7].tokens) < len(alone[1].tokens), "all end at once"


def test_a_defect_of_the_engine_keeps_nobody_waiting(
    backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_engine(backend, monkeypatch, backend._rules):
        monkeypatch.setattr(backend.engine, "_drop_cancelled", None)
        with pytest.raises(CancelledError):
            decode(backend, sound(1), ATTEMPTS[0][2])
        with pytest.raises(TypeError):
            backend.raise_failure()


def test_a_cancelled_text_leaves_the_batch_and_frees_its_rows(backend: TorchBackend) -> None:
    cancelled = threading.Event()
    started = threading.Event()

    def is_cancelled() -> bool:
        started.set()
        return cancelled.is_set()

    def endless() -> None:
        with backend.encode(sound(1), is_cancelled) as encoded:
            encoded.generate(Attempt(PREVIOUSLY, 1.0, 1, 448))

    wanted = decode(backend, sound(2), ATTEMPTS[0][2])
    with ThreadPoolExecutor(backend.lanes) as pool:
        # As many as there are lanes, so that nothing else can begin.
        running = [pool.submit(endless) for _ in range(backend.lanes)]
        assert started.wait(30)
        cancelled.set()
        for future in running:
            with pytest.raises(CancelledError):
                future.result(60)
    assert decode(backend, sound(2), ATTEMPTS[0][2]) == wanted


def test_what_is_urgent_is_encoded_before_what_waits(backend: TorchBackend) -> None:
    begun, release, order = threading.Event(), threading.Event(), list[str]()

    def hold() -> None:
        begun.set()
        assert release.wait(30)

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(backend.engine.run, hold, never)]
        assert begun.wait(30)
        for name, urgent in (("draft", False), ("file", False), ("final", True)):
            task = functools.partial(order.append, name)
            futures.append(pool.submit(backend.engine.run, task, never, urgent=urgent))
            limit = time.monotonic() + 30
            while len(backend.engine._tasks) + len(backend.engine._urgent) < len(futures) - 1:
                assert time.monotonic() < limit
                time.sleep(0.001)
        release.set()
        for future in futures:
            future.result(30)
    assert order == ["final", "draft", "file"]


def test_a_failed_step_fails_its_texts_and_the_next_one_works(
    backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = decode(backend, sound(1), ATTEMPTS[0][2])
    with monkeypatch.context() as patched:

        def broken(*_: object) -> torch.Tensor:
            raise torch.OutOfMemoryError("no memory")

        patched.setattr(backend.engine._logit_rules, "scores", broken)
        with pytest.raises(MemoryError):
            decode(backend, sound(1), ATTEMPTS[0][2])
    assert decode(backend, sound(1), ATTEMPTS[0][2]) == wanted


def test_a_lost_device_stops_the_engine(
    backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LostDevice(Exception):
        """What torch raises is not to be made without a device."""

    def lost() -> None:
        raise LostDevice

    monkeypatch.setattr(engine, "is_fatal", lambda error: isinstance(error, LostDevice))
    with own_engine(backend, monkeypatch, backend._rules):
        backend.raise_failure()
        with pytest.raises(LostDevice):
            backend.engine.run(lost, never)
        with pytest.raises(LostDevice):
            backend.raise_failure()
        with pytest.raises(CancelledError):
            decode(backend, sound(1), ATTEMPTS[0][2])


def test_the_likeliest_language_is_the_one_of_transformers(
    backend: TorchBackend, oracle: WhisperForConditionalGeneration
) -> None:
    vocabulary = Vocabulary(packaged_model() / "tokenizer.json")
    tokens = {vocabulary.language_token(code): code for code in vocabulary.languages}
    features = torch.from_numpy(LogMel(80)(sound(4), 3000))[None]
    with torch.inference_mode():
        logits = oracle(features, decoder_input_ids=torch.tensor([[START]])).logits[0, 0]
    wanted = max(tokens, key=lambda token: float(logits[token]))
    with backend.encode(sound(4), never) as encoded:
        assert encoded.detect_language() == tokens[wanted]


def test_words_are_placed_as_transformers_places_them(
    backend: TorchBackend, oracle: WhisperForConditionalGeneration
) -> None:
    text = [100, 200, 300, 400, 500, 600, 700]
    audio = sound(2)
    with backend.encode(audio, never) as encoded:
        alignment = encoded.align([START], text)
    features = torch.from_numpy(LogMel(80)(audio, 3000))[None]
    oracle.set_attn_implementation("eager")
    tokens = torch.tensor([[START, NO_TIMESTAMPS, *text, END]])
    result = oracle(features, decoder_input_ids=tokens, output_attentions=True)
    oracle.set_attn_implementation("sdpa")
    # Without alignment heads in the configuration: those of the upper half of the layers.
    heads = torch.cat([layer[0] for layer in result.cross_attentions[1:]])
    weights = heads[..., : int(29.5 * 50)]
    weights = weights / weights.sum(-1, keepdim=True)
    weights = (weights - weights.mean(-2, keepdim=True)) / weights.std(
        -2, keepdim=True, correction=0
    )
    smooth = generation_whisper._median_filter(weights, 7).mean(0)[1:-1]
    rows, columns = generation_whisper._dynamic_time_warping(-smooth.detach().double().numpy())
    wanted = columns[np.diff(rows, prepend=-1) > 0]
    assert alignment.positions == wanted.tolist()
    chances = result.logits[0, 1:-2, :END].softmax(-1)[range(len(text)), text]
    assert alignment.probabilities == pytest.approx(chances.tolist(), rel=1e-3)


def test_the_warping_path_is_that_of_transformers() -> None:
    generator = np.random.default_rng(3)
    for shape in ((1, 1), (1, 9), (7, 2), (12, 60)):
        cost = generator.normal(size=shape)
        for ours, theirs in zip(
            warping_path(cost), generation_whisper._dynamic_time_warping(cost), strict=True
        ):
            assert ours.tolist() == theirs.tolist()
    # Ties: a flat matrix.
    ours, theirs = (
        warping_path(np.ones((4, 9))),
        generation_whisper._dynamic_time_warping(np.ones((4, 9))),
    )
    assert ours[0].tolist() == theirs[0].tolist()
