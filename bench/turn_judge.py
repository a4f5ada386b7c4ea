"""How well pauses are judged on recorded speech: ``python -m bench.turn_judge``.

The recordings are Asterisk's English prompts (Debian's asterisk-core-sounds-en-g722, 16 kHz) with
their transcripts. A pause is one that the detector finds: at the end of a prompt, or inside one,
where the recogniser's words so far are aligned with the transcript. It is an end where the
transcript has a full stop, question or exclamation mark there, and none where it has a comma, an
ellipsis or nothing. Prompts without a final mark are left out.

``--fit`` prints the weights of the judge without a model: a logistic regression over all pauses,
and what such weights are worth on prompts that they were not fitted on (five folds).
``--model`` judges with a smart-turn model instead.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import jiwer
import numpy as np
from antiphon_vocoder.recognition.messages import DecodeOptions, TurnOptions
from antiphon_vocoder.recognition.segmenter import Pause, Segmenter
from antiphon_vocoder.recognition.turns import load_judge
from antiphon_vocoder.recognition.turns.phrase import FEATURES, features
from antiphon_vocoder.recognition.vad import Detector, DetectorSet
from antiphon_vocoder.recognition.vad.detector import RATE
from antiphon_vocoder.recognition.whisper.opening import open_recognizer, packaged_model
from antiphon_vocoder.recognition.whisper.transcript import Effort
from numpy.typing import NDArray

SOUNDS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
TRANSCRIPTS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
PAUSE_MS = 200
THRESHOLDS = {"high": 0.25, "medium": 0.4, "low": 0.55}
FOLDS = 5
PRIOR = np.array([0, 1, 1, -2, -2, -2, -1.5, 1, 0, 0, 0, 0, 0], float)
"""What the features mean on their face: the recordings have few of some of them."""
_RIDGE = 0.03
_STEPS = 50


@dataclass(frozen=True)
class Sample:
    """One pause."""

    prompt: str
    audio: NDArray[np.float32]
    text: str
    is_end: bool
    inner: bool


def prompts() -> list[tuple[str, str]]:
    """(name, transcript) of the prompts that say at least two words."""
    found = []
    with gzip.open(TRANSCRIPTS, "rt", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, colon, text = line.partition(":")
            if line.startswith(";") or not colon or re.search(r"[\[<(]", text):
                continue
            if len(text.split()) >= 2 and (SOUNDS / f"{name}.g722").is_file():
                found.append((name, text.strip()))
    return sorted(set(found))


def read(name: str) -> NDArray[np.float32]:
    """A prompt's samples at 16 kHz, half a second of silence behind them."""
    with av.open(str(SOUNDS / f"{name}.g722"), format="g722") as container:
        parts = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    audio = (np.concatenate(parts) / 32768).astype(np.float32)
    return np.concatenate([audio, np.zeros(RATE, np.float32)])


def pauses(audio: NDArray[np.float32], detector: Detector) -> list[NDArray[np.float32]]:
    """The audio up to each pause of the detector."""
    turns = TurnOptions(silence_ms=10_000, prefix_ms=300)
    segmenter = Segmenter(
        turns,
        max_samples=30 * RATE,
        pause_samples=PAUSE_MS * RATE // 1000,
        interval_samples=None,
    )
    segmenter.append(audio)
    state = detector.new_state()
    found = []
    while (window := segmenter.next_window()) is not None:
        for event in segmenter.scored(float(detector.score(window[None], [state])[0])):
            if isinstance(event, Pause):
                found.append(event.audio)
    return found


def label(transcript: str, said: str) -> bool | None:
    """Whether the transcript ends a sentence where ``said`` stops; None when that is unclear."""
    reference = transcript.split()
    plain = [_plain(word) for word in reference]
    heard = [word for word in map(_plain, said.split()) if word]
    if not heard:
        return None
    costs = [
        jiwer.process_words(" ".join(filter(None, plain[:count])), " ".join(heard))
        for count in range(1, len(plain) + 1)
    ]
    errors = [cost.substitutions + cost.insertions + cost.deletions for cost in costs]
    best = int(np.argmin(errors))
    if errors[best] > max(1, len(heard) // 4) or errors.count(errors[best]) > 1:
        return None
    return mark(reference[best])


def mark(word: str) -> bool:
    """Whether a word of a transcript ends a sentence."""
    return bool(re.search(r"[.!?]['\")]*$", word)) and not re.search(r"(\.\.\.|\u2026)$", word)


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


def collect(limit: int) -> list[Sample]:
    """All pauses of the first ``limit`` prompts, recognised."""
    recognizer = open_recognizer(packaged_model())
    detector, _ = DetectorSet().resolve("silero")
    samples = []
    for name, transcript in prompts()[:limit]:
        found = pauses(read(name), detector)
        for index, audio in enumerate(found):
            heard = recognizer.transcribe(audio, DecodeOptions(), effort=Effort.AHEAD)
            inner = index < len(found) - 1
            if inner:
                is_end = label(transcript, heard.text)
            else:
                is_end = mark(transcript) if re.search(r"[.!?]$", transcript) else None
            if is_end is not None:
                samples.append(Sample(name, audio, heard.text, is_end, inner))
    return samples


def fit(samples: list[Sample]) -> NDArray[np.float64]:
    """Weights of a logistic regression by Newton's method: both labels weigh the same, and a ridge
    holds what the samples do not tell at PRIOR."""
    rows = np.array([features(one.audio, one.text, "en") for one in samples])
    ends = np.array([one.is_end for one in samples], dtype=float)
    share = np.where(ends == 1, 0.5 / max(ends.sum(), 1), 0.5 / max((1 - ends).sum(), 1))
    weights = PRIOR.copy()
    ridge = _RIDGE * np.eye(len(weights))
    ridge[0, 0] = 0
    for _ in range(_STEPS):
        odds = 1 / (1 + np.exp(-rows @ weights))
        slope = rows.T @ (share * (odds - ends)) + ridge @ (weights - PRIOR)
        curve = (rows * (share * odds * (1 - odds))[:, None]).T @ rows + ridge
        weights -= np.linalg.solve(curve + 1e-9 * np.eye(len(weights)), slope)
    return weights


def report(samples: list[Sample], scores: NDArray[np.float64], title: str) -> None:
    """Prints accuracy at each eagerness and the area under the curve."""
    ends = np.array([one.is_end for one in samples])
    positive, negative = scores[ends], scores[~ends]
    area = np.mean(positive[:, None] > negative[None]) + 0.5 * np.mean(
        positive[:, None] == negative[None]
    )
    print(f"{title}: {len(positive)} ends, {len(negative)} pauses that go on, AUC {area:.3f}")
    for name, threshold in THRESHOLDS.items():
        taken, kept = np.mean(positive >= threshold), np.mean(negative < threshold)
        print(f"  {name:6s} {threshold}: ends taken {taken:.3f}, other pauses kept open {kept:.3f}")


def main() -> None:
    """Entry of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the weights on the even prompts")
    parser.add_argument("--model", type=Path, help="ONNX of the smart-turn layout")
    parser.add_argument("--limit", type=int, default=10_000, help="prompts at most")
    options = parser.parse_args()
    if not TRANSCRIPTS.is_file():
        sys.exit("the recordings are missing: apt-get install asterisk-core-sounds-en-g722")
    samples = collect(options.limit)
    if options.fit:
        for name, weight in zip(FEATURES, fit(samples), strict=True):
            print(f"    {weight:.2f},  # {name}")
        unseen = list(cross_validated(samples))
        report([one for one, _ in unseen], np.array([score for _, score in unseen]), "unseen")
    judge = load_judge(options.model)
    scores = np.array([judge.probability(one.audio, one.text, "en") for one in samples])
    report(samples, scores, judge.name)


def cross_validated(samples: list[Sample]) -> Iterator[tuple[Sample, float]]:
    """Each sample with its score by weights that were fitted on other prompts."""
    names = sorted({one.prompt for one in samples})
    for fold in range(FOLDS):
        held = set(names[fold::FOLDS])
        weights = fit([one for one in samples if one.prompt not in held])
        for one in samples:
            if one.prompt in held:
                score = float(weights @ features(one.audio, one.text, "en"))
                yield one, 1 / (1 + np.exp(-score))


if __name__ == "__main__":
    main()
