"""The contract of recognition over the torch engine, on the packaged model's weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from antiphon.vocoder.v1 import recognition_service_pb2_grpc as pb_grpc
from antiphon_vocoder.recognition.config import RecognitionSettings

from bench.whisper_checkpoints import converted_checkpoint
from tests.rpc.recognition import test_files, test_streaming
from tests.rpc.recognition.conftest import LIMITS, RecognitionServer, served, stub_of
from tests.rpc.recognition.live import audio_requests, of, recognise, word_error_rate
from tests.unit.recognition.piper_speech import SENTENCES, pcm16, silence, speak

pytestmark = pytest.mark.slow

CONTRACT: list[Callable[[Any], Awaitable[None]]] = [
    test_streaming.test_a_conversation_is_cut_into_its_sentences_and_understood,
    test_streaming.test_events_do_not_depend_on_the_cut_of_the_bytes,
    test_files.test_ogg_opus_is_understood,
    test_files.test_a_file_and_a_stream_agree,
    test_files.test_a_silent_file_has_no_text,
    test_files.test_translation_is_refused_by_an_english_recogniser,
]


@pytest.fixture(scope="module")
def torch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecognitionServer]:
    directory = converted_checkpoint(tmp_path_factory.mktemp("tiny"))
    with served(RecognitionSettings(model_dir=directory, **LIMITS)) as server:
        yield server


@pytest.fixture
async def torch_stub(
    torch_server: RecognitionServer,
) -> AsyncIterator[pb_grpc.RecognitionServiceStub]:
    async with stub_of(torch_server) as made:
        yield made


@pytest.mark.parametrize("contract", CONTRACT, ids=lambda contract: contract.__name__)
async def test_the_contract_holds(
    torch_stub: Any, contract: Callable[[Any], Awaitable[None]]
) -> None:
    await contract(torch_stub)


async def test_a_file_of_several_passes(torch_stub: Any) -> None:
    check = test_files.test_a_file_of_several_passes_has_monotone_times_and_all_its_words
    await check(torch_stub, 3, 1)


@pytest.mark.parametrize("name", ["loud noise", "beat"])
async def test_what_is_no_speech_gives_an_empty_final(torch_stub: Any, name: str) -> None:
    await test_streaming.test_what_is_no_speech_gives_an_empty_final(torch_stub, name)


async def test_streams_that_speak_at_once_share_batches_and_keep_their_words(
    torch_stub: Any,
) -> None:
    texts = SENTENCES[:6]
    clips = [np.concatenate([silence(0.4), speak(text), silence(0.9)]) for text in texts]
    streams = [recognise(torch_stub, audio_requests(pcm16(clip))) for clip in clips]
    finals = [of(events, "final") for events in await asyncio.gather(*streams)]
    assert all(len(final) == 1 for final in finals)
    assert word_error_rate(list(texts), [final[0].text for final in finals]) <= 0.12
