"""Speech in pieces, heard again: no word is lost, and company changes no sample."""

from __future__ import annotations

import asyncio
import re
from itertools import product
from pathlib import Path

import jiwer
import pytest

from bench.speech_service import SpeechService, listen, speak, speech_service
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
    "At half past six, {name} took the bus to the harbour.",
    "Would {name} like a glass of water?",
)
SENTENCES = [form.format(name=name) for form, name in product(FORMS, NAMES)]
CI_SENTENCES = SENTENCES[::13]


def plain(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9 ]", " ", text.lower()).split()


async def words_survive(service: SpeechService, sentences: list[str]) -> None:
    """Gate 4: streamed speech is understood as well as the voice run on the whole sentence."""
    streamed, whole = [], []
    for text in sentences:
        pieces = [text[index : index + 7] for index in range(0, len(text), 7)]
        spoken = await speak(service, pieces)
        assert spoken.finished == 1
        streamed.append(plain((await listen(service, spoken.samples(), manual=True)).text))
        whole.append(plain((await listen(service, speak_whole(text), manual=True)).text))
    references = [" ".join(plain(text)) for text in sentences]
    rates = [
        jiwer.wer(references, [" ".join(words) for words in texts]) for texts in (streamed, whole)
    ]
    assert rates[0] <= rates[1] + 0.005
    lost = [
        (text, words)
        for text, words in zip(sentences, streamed, strict=True)
        if plain(text)[-1] not in words[-2:]
    ]
    assert not lost


async def test_streamed_speech_keeps_its_words_and_company_changes_no_sample(
    tmp_path: Path,
) -> None:
    """Gates 4 and 5 in short: 8 sentences; 1, 8 and 32 equal streams."""
    async with speech_service(tmp_path) as service:
        await words_survive(service, CI_SENTENCES)
        alone = await speak(service, ["Yes, it is."])
        for count in (8, 32):
            together = await asyncio.gather(
                *(speak(service, ["Yes, it ", "is."], key=1) for _ in range(count))
            )
            assert {one.error for one in together} == {""}
            assert {b"".join(one.audio) for one in together} == {b"".join(alone.audio)}


@pytest.mark.slow
async def test_a_hundred_streamed_sentences_keep_their_words(tmp_path: Path) -> None:
    async with speech_service(tmp_path) as service:
        await words_survive(service, SENTENCES)
