"""Speech in pieces, heard again: no word is lost, and company changes no sample."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import jiwer
import numpy as np
import pytest

from bench.speech_service import HEARD_RATE, SpeechService, listen, speak, speech_service
from tests.unit.recognition.piper_speech import speak as speak_whole

NAMES = ("Anna", "Peter", "Maria", "David", "Susan", "Robert", "Helen", "Martin", "Laura", "Thomas")
FORMS = (
    "{name} will call you back in twenty minutes.",
    "Yes, {name} is here.",
    "The bill for {name} is forty two dollars for this month.",
    "Please send three copies to {name} and keep one for yourself.",
    "I met {name} in nineteen ninety nine at the old railway station.",
    "Thank you, {name}.",
    "{name} lives at number seventeen on the main street.",
    "The answer of {name} was short: no, not today.",
    "At half past six, {name} took the bus to the market.",
    "Would {name} like a glass of water?",
)
SENTENCES = [form.format(name=name) for name, form in product(NAMES, FORMS)]
CI_SENTENCES = SENTENCES[::13]
PAUSE = np.zeros(int(0.6 * HEARD_RATE), np.float32)
HEARD_AT_ONCE = 27 * HEARD_RATE
"""Sentences are recognised together: a pass of the recogniser costs the same for up to 30 s."""


def plain(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9 ]", " ", text.lower()).split()


async def heard(service: SpeechService, sounds: Sequence[np.ndarray]) -> list[str]:
    """The words of all sounds, in order."""
    words: list[str] = []
    batch: list[np.ndarray] = []
    for place, sound in enumerate(sounds):
        batch += [sound, PAUSE]
        following = len(sounds[place + 1]) if place + 1 < len(sounds) else HEARD_AT_ONCE
        if sum(map(len, batch)) + following > HEARD_AT_ONCE:
            words += plain((await listen(service, np.concatenate(batch), manual=True)).text)
            batch = []
    return words


def lost_endings(sentences: Sequence[str], words: Sequence[str]) -> list[str]:
    """Sentences whose last word does not come behind that of the sentence before."""
    position, lost = 0, []
    for text in sentences:
        last = plain(text)[-1]
        if last in words[position:]:
            position = words.index(last, position) + 1
        else:
            lost.append(text)
    return lost


def pieces_of(text: str) -> list[str | None]:
    return [text[index : index + 7] for index in range(0, len(text), 7)]


def flushed(text: str) -> list[str | None]:
    """The text with a flush behind its second word."""
    first, second, rest = text.split(" ", 2)
    return [f"{first} {second} ", None, *pieces_of(rest)]


async def spoken(
    service: SpeechService, sentences: Sequence[str], cuts: Sequence[list[str | None]]
) -> list[np.ndarray]:
    """The sentences as they are streamed; the marks of each reach its end."""
    sounds = []
    for text, pieces in zip(sentences, cuts, strict=True):
        one = await speak(service, pieces)
        assert (one.error, one.finished, one.spoken_through) == ("", 1, len(text))
        sounds.append(one.samples())
    return sounds


async def words_survive(service: SpeechService, sentences: list[str]) -> None:
    """Gate 4: streamed speech is understood as well as the voice run on the whole sentence."""
    streamed = await heard(
        service, await spoken(service, sentences, [pieces_of(text) for text in sentences])
    )
    whole = await heard(service, [speak_whole(text) for text in sentences])
    reference = " ".join(word for text in sentences for word in plain(text))
    errors = [jiwer.wer(reference, " ".join(words)) for words in (streamed, whole)]
    assert errors[0] <= errors[1] + 0.005
    assert not lost_endings(sentences, streamed)
    some = sentences[:: max(1, len(sentences) // 20)][1:4]
    cuts = [flushed(text) for text in some]
    assert not lost_endings(some, await heard(service, await spoken(service, some, cuts)))


async def test_streamed_speech_keeps_its_words_and_company_changes_no_sample(
    tmp_path: Path,
) -> None:
    """Gates 4 and 5 in short: 8 sentences; 1, 8 and 32 equal streams."""
    async with speech_service(tmp_path) as service:
        await words_survive(service, CI_SENTENCES)
        alone = await speak(service, ["Yes."])
        for count in (8, 32):
            together = await asyncio.gather(
                *(speak(service, ["Ye", "s."], key=1) for _ in range(count))
            )
            assert {one.error for one in together} == {""}
            assert {b"".join(one.audio) for one in together} == {b"".join(alone.audio)}


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_hundred_streamed_sentences_keep_their_words(tmp_path: Path) -> None:
    async with speech_service(tmp_path) as service:
        await words_survive(service, SENTENCES)
