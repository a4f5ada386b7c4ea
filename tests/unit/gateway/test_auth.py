"""Credentials: keys from every source, their end, and what is said without telling too much."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from antiphon_core.errors import (
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from antiphon_gateway.identity import key_sources
from antiphon_gateway.identity.credentials import client_address, token_of
from antiphon_gateway.identity.key_sources import StoredKeys
from antiphon_gateway.identity.keys import KeyRecord, digest_of, new_key
from antiphon_gateway.identity.principal import OPEN, Principal
from antiphon_gateway.identity.settings import IdentitySettings
from antiphon_gateway.identity.verifiers import Identity, build_identity
from antiphon_gateway.middleware.authentication import assume_tenant, required_scope
from antiphon_gateway.quota.limits import QuotaLimits
from antiphon_gateway.store.storage import Storage

KEY = "sk-one"


def identity(**settings: object) -> Identity:
    return build_identity([], IdentitySettings.model_validate(settings), None)


class CountingReader:
    """A store that answers from a dict, or not at all."""

    def __init__(self, *records: KeyRecord) -> None:
        self.records = {record.sha256: record for record in records}
        self.reads = 0
        self.is_lost = False

    async def find(self, digest: str) -> KeyRecord | None:
        self.reads += 1
        if self.is_lost:
            raise Unavailable("lost", reason="STORE_UNAVAILABLE")
        return self.records.get(digest)


class Clock:
    """Stands for the time module in the module under test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(key_sources, "time", made)
    return made


async def test_open_where_nothing_is_configured() -> None:
    everybody = identity()
    assert not everybody.is_required
    assert await everybody.authenticate("anything") is OPEN
    for scope in ("admin", "tenant.assume", "metrics"):
        with pytest.raises(PermissionDenied):
            OPEN.require(scope)


async def test_configured_digests() -> None:
    guarded = build_identity([digest_of(KEY)], IdentitySettings(), None)
    principal = await guarded.authenticate(KEY)
    assert principal.key_id == digest_of(KEY)[:12] and len(principal.key_id) == 12
    for wrong in ("", "sk-two", KEY + "x"):
        with pytest.raises(Unauthenticated):
            await guarded.authenticate(wrong)


def test_a_new_key_has_256_bits() -> None:
    keys = {new_key() for _ in range(64)}
    assert len(keys) == 64
    assert all(len(key.removeprefix("sk-antiphon-")) == 43 for key in keys)  # 32 bytes in base64


async def test_the_keys_file_is_followed(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[keys]]\nsha256 = "{digest_of(KEY)}"\ntenant = "acme"\nscopes = ["files"]\n'
        'models = ["small"]\n[keys.limits]\nconcurrency = 2\n'
    )
    guarded = identity(keys_file=path)
    principal = await guarded.authenticate(KEY)
    assert principal.tenant == "acme" and principal.models == ("small",)
    assert principal.scopes == {"files"} and principal.limits == QuotaLimits(concurrency=2)
    path.write_text("keys = []\n")
    assert await guarded.authenticate(KEY)
    clock.now += 3
    with pytest.raises(Unauthenticated):
        await guarded.authenticate(KEY)
    path.write_text(f'[[keys]]\nsha256 = "{digest_of(KEY)}"\n')
    clock.now += 3
    assert await guarded.authenticate(KEY)
    path.write_text("this is no TOML [")
    os.utime(path, (2, 2))
    clock.now += 3
    assert await guarded.authenticate(KEY), "a broken change keeps the former keys"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("keys = [", "keys.toml"),
        ('[[keys]]\nsha256 = "short"\n', "sha256"),
        (f'[[keys]]\nsha256 = "{"0" * 64}"\nscopes = ["everything"]\n', "everything"),
        (f'[[keys]]\nsha256 = "{"0" * 64}"\nlimit = 1\n', "limit"),
        (f'[[keys]]\nsha256 = "{"0" * 64}"\nlimits = {{concurrency = 0}}\n', "concurrency"),
    ],
)
def test_a_wrong_keys_file_stops_the_start(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(FailedPrecondition, match=problem):
        identity(keys_file=path)


async def test_stored_keys_are_asked_for_once_in_a_while(clock: Clock) -> None:
    record = KeyRecord(digest_of(KEY))
    reader = CountingReader(record)
    keys = StoredKeys(reader, grace_seconds=60)
    for _ in range(10):
        assert await keys.find(record.sha256) == record
        assert await keys.find("0" * 64) is None
    assert reader.reads == 2
    del reader.records[record.sha256]
    clock.now += 5
    assert await keys.find(record.sha256) is None, "a revocation is seen within 5 s"


async def test_known_keys_outlive_the_store_for_a_while(clock: Clock) -> None:
    record = KeyRecord(digest_of(KEY))
    reader = CountingReader(record)
    keys = StoredKeys(reader, grace_seconds=60)
    assert await keys.find(record.sha256)
    reader.is_lost = True
    clock.now += 30
    assert await keys.find(record.sha256)
    with pytest.raises(Unavailable):
        await keys.find("0" * 64)
    clock.now += 60
    with pytest.raises(Unavailable):
        await keys.find(record.sha256)


async def test_revoked_and_expired_keys(storage: Storage, clock: Clock) -> None:
    settings = IdentitySettings.model_validate({"stored_keys": True})
    guarded = build_identity([], settings, storage.keys)
    key, short = new_key(), new_key()
    await storage.keys.add(KeyRecord(digest_of(key), created_at=1))
    await storage.keys.add(KeyRecord(digest_of(short), created_at=1, expires_at=2))
    assert await guarded.authenticate(key)
    with pytest.raises(Unauthenticated, match="expired"):
        await guarded.authenticate(short)
    await storage.keys.revoke(digest_of(key)[:12], now=int(time.time()))
    clock.now += 5
    with pytest.raises(Unauthenticated, match="revoked"):
        await guarded.authenticate(key)


class _Custom:
    async def verify(self, token: str) -> Principal | None:
        return Principal(tenant="theirs") if token == "custom" else None


async def test_a_verifier_by_dotted_path() -> None:
    guarded = identity(verifier=f"{__name__}:_Custom")
    assert (await guarded.authenticate("custom")).tenant == "theirs"
    with pytest.raises(Unauthenticated):
        await guarded.authenticate("other")
    for path in ("no.such:thing", f"{__name__}:nothing", "nonsense"):
        with pytest.raises(FailedPrecondition) as error:
            identity(verifier=path)
        assert error.value.field == "identity.verifier"


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ([(b"authorization", b"Bearer  a b ")], "a b"),
        ([(b"authorization", b"bEARER x")], "x"),
        ([(b"authorization", b"Basic x")], ""),
        ([(b"api-key", b"x")], "x"),
        ([(b"api-key", b"x"), (b"authorization", b"Bearer y")], "y"),
        ([], ""),
    ],
)
def test_where_a_token_stands(headers: list, token: str) -> None:
    assert token_of(headers) == token


@pytest.mark.parametrize(
    ("hops", "address"),
    [(0, "10.0.0.1"), (1, "3.3.3.3"), (2, "2.2.2.2"), (3, "6.6.6.6"), (4, "10.0.0.1")],
)
def test_only_trusted_hops_tell_the_client(hops: int, address: str) -> None:
    headers = [(b"x-forwarded-for", b"6.6.6.6, 2.2.2.2"), (b"x-forwarded-for", b"3.3.3.3")]
    assert client_address(headers, "10.0.0.1", hops) == address


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/chat/completions", "inference"),
        ("POST", "/tokenize", "inference"),
        ("GET", "/v1/anything", "inference"),
        ("GET", "/v1/models", ""),
        ("GET", "/v1/audio/voices", "audio"),
        ("POST", "/v1/audio/voices", "voices.write"),
        ("DELETE", "/v1/audio/voices/x", "voices.write"),
        ("POST", "/v1/audio/speech", "audio"),
        ("POST", "/v1/realtime/client_secrets", "realtime"),
        ("POST", "/v1/files", "files"),
        ("GET", "/v1/batches/x", "batch"),
        ("GET", "/v1/loras", "inference"),
        ("DELETE", "/v1/loras/x", "loras.write"),
        ("GET", "/v1/admin/fleet", "admin"),
    ],
)
def test_the_scope_of_a_path(method: str, path: str, scope: str) -> None:
    assert required_scope(method, path) == scope


def test_another_tenant_needs_its_scope() -> None:
    plain = Principal(tenant="a")
    assert assume_tenant(plain, "") is plain and assume_tenant(plain, "a") is plain
    with pytest.raises(PermissionDenied):
        assume_tenant(plain, "b")
    powerful = Principal(tenant="a", scopes=frozenset(("tenant.assume",)))
    assert assume_tenant(powerful, "b").tenant == "b"
    with pytest.raises(InvalidArgument):
        assume_tenant(powerful, "b b")
