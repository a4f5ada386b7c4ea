"""Signed tokens: only the listed algorithms, only the issuer's keys, only while they are valid."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
import pytest
from antiphon_core.errors import Unauthenticated, Unavailable
from antiphon_gateway.identity import tokens
from antiphon_gateway.identity.settings import JwtIssuer
from antiphon_gateway.identity.tokens import TokenVerifier
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from pydantic import ValidationError


class Issuer:
    """A real HTTP server that publishes keys, and signs."""

    def __init__(self) -> None:
        self.private = {
            "rsa": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
            "ed": ed25519.Ed25519PrivateKey.generate(),
        }
        self.published = ["rsa", "ec", "ed"]
        self.fetches = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(issuer.answer(self.path)).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> dict:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": self.url + "/keys"}
        self.fetches += 1
        return {"keys": [self.public(name) for name in self.published]}

    def public(self, name: str) -> dict:
        key = self.private[name].public_key()
        algorithm, kind = {
            "rsa": ("RS256", jwt.algorithms.RSAAlgorithm),
            "ec": ("ES256", jwt.algorithms.ECAlgorithm),
            "ed": ("EdDSA", jwt.algorithms.OKPAlgorithm),
        }[name]
        return {**kind.to_jwk(key, as_dict=True), "kid": name, "alg": algorithm, "use": "sig"}

    def sign(self, name: str = "rsa", kid: str = "", algorithm: str = "", **claims: object) -> str:
        algorithm = algorithm or {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA"}[name]
        now = int(time.time())
        body = {"iss": self.url, "aud": "antiphon", "exp": now + 60, "sub": "u", **claims}
        body = {key: value for key, value in body.items() if value is not None}
        return jwt.encode(body, self.private[name], algorithm, headers={"kid": kid or name})


@pytest.fixture(scope="module")
def served() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.server.shutdown()
    issuer.server.server_close()


@pytest.fixture
def issuer(served: Issuer) -> Issuer:
    served.published = ["rsa", "ec", "ed"]
    served.fetches = 0
    return served


def verifier(issuer: Issuer, **settings: str) -> TokenVerifier:
    return TokenVerifier([JwtIssuer(issuer=issuer.url, audience="antiphon", **settings)])


@pytest.mark.parametrize("name", ["rsa", "ec", "ed"])
async def test_each_algorithm(issuer: Issuer, name: str) -> None:
    token = issuer.sign(
        name,
        tenant="acme",
        scope="inference files nonsense",
        antiphon_limits={"concurrency": 3},
    )
    principal = await verifier(issuer).verify(token)
    assert principal is not None
    assert principal.tenant == "acme" and principal.scopes == {"inference", "files"}
    assert principal.limits.concurrency == 3 and len(principal.key_id) == 12


async def test_keys_are_fetched_once(issuer: Issuer) -> None:
    checker = verifier(issuer)
    token = issuer.sign()
    await asyncio.gather(*(checker.verify(token) for _ in range(20)))
    assert issuer.fetches == 1


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1},
        {"exp": None},
        {"aud": "others"},
        {"aud": None},
        {"nbf": 2**33},
        {"iss": "https://elsewhere.example"},
        {"tenant": "a b"},
        {"antiphon_limits": {"concurrency": -1}},
    ],
)
async def test_wrong_claims(issuer: Issuer, claims: dict) -> None:
    with pytest.raises(Unauthenticated):
        await verifier(issuer).verify(issuer.sign(**claims))


async def test_a_minute_of_leeway(issuer: Issuer) -> None:
    now = int(time.time())
    checker = verifier(issuer)
    assert await checker.verify(issuer.sign(exp=now - 50, nbf=now + 50))
    with pytest.raises(Unauthenticated):
        await checker.verify(issuer.sign(exp=now - 70))


async def test_foreign_algorithms_and_forged_signatures(issuer: Issuer) -> None:
    checker = verifier(issuer)
    public_text = issuer.public("rsa")["n"]
    claims = {"iss": issuer.url, "aud": "antiphon", "exp": time.time() + 60}
    for forged in (
        jwt.encode(claims, "", "none", headers={"kid": "rsa"}),
        jwt.encode(claims, public_text, "HS256", headers={"kid": "rsa"}),
        issuer.sign("rsa", algorithm="RS512"),
        issuer.sign("ec", kid="rsa"),
        issuer.sign()[:-8] + "AAAAAAAA",
    ):
        with pytest.raises(Unauthenticated):
            await checker.verify(forged)


async def test_what_is_no_token_is_left_to_others(issuer: Issuer) -> None:
    for text in ("sk-key", "a.b.c", "", "a.b"):
        assert await verifier(issuer).verify(text) is None


async def test_an_unknown_key_is_looked_for_once_a_minute(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.published = ["rsa"]
    checker = verifier(issuer, jwks_url=issuer.url + "/keys")
    assert await checker.verify(issuer.sign("rsa"))
    issuer.published = ["rsa", "ec"]
    for _ in range(5):
        with pytest.raises(Unauthenticated, match="does not publish"):
            await checker.verify(issuer.sign("ec"))
    assert issuer.fetches == 1
    monkeypatch.setattr(tokens, "REFETCH_SECONDS", 0.0)
    assert await checker.verify(issuer.sign("ec"))
    assert issuer.fetches == 2


async def test_a_dead_issuer_is_unavailable_once_and_keys_outlive_it(issuer: Issuer) -> None:
    dead = TokenVerifier(
        [JwtIssuer(issuer=issuer.url, audience="antiphon", jwks_url="http://127.0.0.1:9/keys")]
    )
    with pytest.raises(Unavailable):
        await dead.verify(issuer.sign())


def test_issuers_are_asked_over_tls() -> None:
    with pytest.raises(ValidationError, match="https"):
        JwtIssuer(issuer="http://idp.example", audience="a")
