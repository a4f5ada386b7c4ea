"""/v1/audio/voices and /v1/audio/voice_consents over real sockets, with the unmodified SDK."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from antiphon_gateway.identity.keys import digest_of
from gateway_bench import GatewayBench
from openai import AsyncOpenAI
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = {
    "red": {"tenant": "red"},
    "blue": {"tenant": "blue"},
    "reader": {"tenant": "red", "scopes": ["audio"]},
    "narrow": {"tenant": "red", "voices": ["joe"]},
    "root": {"tenant": "house", "scopes": ["audio", "voices.write", "admin"]},
}
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt spoken"
GOLDEN = Path(__file__).parents[2] / "golden" / "gateway"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("voices")
    lines = []
    for name, grant in KEYS.items():
        lines += ["[[keys]]", f'sha256 = "{digest_of(name)}"']
        lines += [f"{field} = {json.dumps(value)}" for field, value in grant.items()]
    (path / "keys.toml").write_text("\n".join(lines))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept(folder: Path) -> AsyncIterator[GatewayBench]:
    made = GatewayBench(
        store={"directory": str(folder / "store")},
        identity={"keys_file": str(folder / "keys.toml")},
        limits={"upload_bytes": 100_000},
    )
    await made.start()
    storage = made.gateway.storage
    assert storage is not None
    await until(lambda: storage.store.is_available)
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def nothing_made(kept: GatewayBench) -> None:
    kept.fakes.vocoder.made.clear()
    kept.fakes.vocoder.samples.clear()
    kept.fakes.vocoder.keeps_no_voices = False


def client_of(bench: GatewayBench, key: str = "red") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=bench.url + "/v1", api_key=key, max_retries=0)


async def ask(bench: GatewayBench, method: str, path: str, key: str = "red", **content: Any):
    headers = {"authorization": f"Bearer {key}"}
    return await bench.http.request(method, f"/v1/audio/{path}", headers=headers, **content)


async def voice_ids(bench: GatewayBench, key: str = "red") -> list[str]:
    answer = (await ask(bench, "GET", "voices", key)).json()
    return [voice["id"] for voice in answer["data"]]


async def consent(client: AsyncOpenAI, name: str = "Joe") -> str:
    made = await client.audio.voice_consents.create(
        name=name, language="en-US", recording=("joe.wav", WAV)
    )
    return made.id


async def test_consents_come_and_go(kept: GatewayBench, folder: Path) -> None:
    async with client_of(kept, "blue") as client:
        consents = client.audio.voice_consents
        ids = [await consent(client, f"n{number}") for number in range(5)]
        first = await consents.retrieve(ids[0])
        assert (first.name, first.language, first.object) == ("n0", "en-US", "audio.voice_consent")
        seen = [item.id async for item in consents.list(limit=2)]
        assert seen == ids[::-1]
        renamed = await consents.update(ids[0], name="Joe B.")
        assert renamed.name == "Joe B."
        assert await consents.retrieve(ids[0]) == renamed
        async with client_of(kept, "red") as stranger:
            for refused in (
                stranger.audio.voice_consents.retrieve(ids[0]),
                stranger.audio.voice_consents.update(ids[0], name="x"),
                stranger.audio.voice_consents.delete(ids[0]),
            ):
                with pytest.raises(openai.NotFoundError):
                    await refused
            assert ids[0] not in [i.id async for i in stranger.audio.voice_consents.list()]
        assert (await consents.retrieve(ids[0])).name == "Joe B."
        for identifier in ids:
            assert (await consents.delete(identifier)).deleted
        with pytest.raises(openai.NotFoundError):
            await consents.delete(ids[0])
    assert not await asyncio.to_thread(lambda: list(folder.glob("store/blobs/*/*")))


async def test_a_voice_is_made_used_and_deleted(kept: GatewayBench) -> None:
    async with client_of(kept) as client:
        agreed = await consent(client)
        voice = await client.audio.voices.create(
            name="Twin", consent=agreed, audio_sample=("a.wav", b"sample" * 1000)
        )
        assert (voice.name, voice.type, voice.object) == ("Twin", "audio_sample", "audio.voice")
        assert voice.created_at == 1_700_000_003
        ((config, data),) = kept.fakes.vocoder.samples
        assert data == b"sample" * 1000
        assert config.consent.evidence_sha256 == hashlib.sha256(WAV).digest()
        assert (config.consent.speaker, agreed in config.consent.statement) == ("Joe", True)
        assert await voice_ids(kept) == ["joe", "ann", voice.id]
        assert await voice_ids(kept, "blue") == ["joe", "ann"]
        assert await voice_ids(kept, "narrow") == ["joe"]
        models = [model.id async for model in client.models.list()]
        assert "piper" in models and "codec" not in models
        spoken = await client.audio.speech.create(model="tts-1", input="Hi", voice={"id": voice.id})
        assert spoken.content
        async with client_of(kept, "blue") as stranger:
            with pytest.raises(openai.BadRequestError):
                await stranger.audio.speech.create(
                    model="tts-1", input="Hi", voice={"id": voice.id}
                )
            with pytest.raises(openai.NotFoundError):
                await stranger.audio.voices.delete(voice.id)
        assert (await client.audio.voices.delete(voice.id)).deleted
        assert await voice_ids(kept) == ["joe", "ann"]
        with pytest.raises(openai.NotFoundError):
            await client.audio.voices.delete(voice.id)
        with pytest.raises(openai.BadRequestError):
            await client.audio.speech.create(model="tts-1", input="Hi", voice={"id": voice.id})
        again = await client.audio.voices.create(
            name="Twin", consent=agreed, audio_sample=("a.wav", b"sample" * 1000)
        )
        async with client_of(kept, "root") as administration:
            assert again.id not in await voice_ids(kept, "root")
            assert (await administration.audio.voices.delete(again.id)).deleted
        assert await voice_ids(kept) == ["joe", "ann"]
        await client.audio.voice_consents.delete(agreed)


@pytest.mark.parametrize(
    ("key", "fields", "file", "status", "param"),
    [
        ("red", {}, b"x", 400, "name"),
        ("red", {"name": ""}, b"x", 400, "name"),
        ("red", {"name": "x" * 129}, b"x", 400, "name"),
        ("red", {"name": "x"}, None, 400, "audio_sample"),
        ("red", {"name": "x"}, b"", 400, "audio_sample"),
        ("red", {"name": "x"}, b"x" * 100_001, 413, "audio_sample"),
        ("red", {"name": "x"}, b"x", 400, "consent"),
        ("red", {"name": "x", "consent": "cons_none"}, b"x", 404, "consent"),
        ("red", {"name": "x", "type": "prompt"}, b"x", 400, "type"),
        ("red", {"name": "x", "prompt": "deep"}, b"x", 400, "prompt"),
        ("red", {"name": "x", "consent": "CONSENT"}, b"noise", 400, "audio_sample"),
        ("reader", {"name": "x"}, b"x", 403, None),
        ("narrow", {"name": "x"}, b"x", 403, None),
    ],
)
async def test_what_makes_no_voice_is_named(
    kept: GatewayBench, key: str, fields: dict, file: bytes | None, status: int, param: str | None
) -> None:
    async with client_of(kept) as client:
        agreed = await consent(client)
    given = {name: agreed if value == "CONSENT" else value for name, value in fields.items()}
    files: dict[str, Any] = {name: (None, value) for name, value in given.items()}
    if file is not None:
        files["audio_sample"] = ("a.wav", file)
    if not files:
        files["other"] = (None, "x")
    answer = await ask(kept, "POST", "voices", key, files=files)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert await voice_ids(kept) == ["joe", "ann"]


@pytest.mark.parametrize(
    ("fields", "file", "status", "param"),
    [
        ({"name": "x"}, WAV, 400, "language"),
        ({"language": "en"}, WAV, 400, "name"),
        ({"name": "x", "language": "e\n"}, WAV, 400, "language"),
        ({"name": "x", "language": "en"}, None, 400, "recording"),
        ({"name": "x", "language": "en"}, b"text", 400, "recording"),
        ({"name": "x", "language": "en"}, WAV * 10_000, 413, "recording"),
    ],
)
async def test_what_is_no_consent_is_named(
    kept: GatewayBench, fields: dict, file: bytes | None, status: int, param: str
) -> None:
    files: dict[str, Any] = {name: (None, value) for name, value in fields.items()}
    if file is not None:
        files["recording"] = ("a.wav", file)
    answer = await ask(kept, "POST", "voice_consents", files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


async def test_a_service_without_a_store_says_so(kept: GatewayBench) -> None:
    kept.fakes.vocoder.keeps_no_voices = True
    async with client_of(kept) as client:
        agreed = await consent(client)
        with pytest.raises(openai.ConflictError, match="no store is configured"):
            await client.audio.voices.create(
                name="x", consent=agreed, audio_sample=("a.wav", b"sample")
            )


@pytest.mark.parametrize(
    ("voice", "status"), [("joe", 400), ("none", 404), ("..%2fx", 404), ("%00", 404)]
)
async def test_only_a_made_voice_can_be_deleted(
    kept: GatewayBench, voice: str, status: int
) -> None:
    assert (await ask(kept, "DELETE", f"voices/{voice}")).status_code == status
    assert await voice_ids(kept) == ["joe", "ann"]


async def test_golden_answers(kept: GatewayBench) -> None:
    made = await ask(
        kept,
        "POST",
        "voice_consents",
        files={"recording": ("a.wav", WAV), "name": (None, "Joe"), "language": (None, "en-US")},
    )
    agreed = made.json()["id"]
    voice = await ask(
        kept,
        "POST",
        "voices",
        files={"audio_sample": ("a.wav", b"x"), "name": (None, "J"), "consent": (None, agreed)},
    )
    answers: dict[str, httpx.Response] = {
        "create consent": made,
        "create voice": voice,
        "list voices": await ask(kept, "GET", "voices"),
        "delete voice": await ask(kept, "DELETE", f"voices/{voice.json()['id']}"),
        "delete consent": await ask(kept, "DELETE", f"voice_consents/{agreed}"),
        "no such consent": await ask(kept, "GET", "voice_consents/cons_1"),
    }
    shown = "\n".join(
        f"{name}: HTTP {answer.status_code}\n{answer.text}" for name, answer in answers.items()
    )
    shown = re.sub(r"cons_[0-9a-f]{32}", "cons_ID", shown)
    shown = re.sub(r'"created_at":\d+', '"created_at":TIME', shown)
    file = GOLDEN / "voices.txt"
    if not file.exists():
        file.write_text(shown, encoding="utf-8")
        pytest.fail(f"wrote {file.name}: review and commit it")
    assert shown == file.read_text(encoding="utf-8")
