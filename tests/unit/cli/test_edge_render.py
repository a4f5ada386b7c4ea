"""The rendered Envoy configurations pass the real binary and keep administration inside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from antiphon_cli.edge.render import ProxyPlan, Target, Timings, Tls, render, render_tls_secret

ROOT = Path(__file__).resolve().parents[3]
ENVOY = Path(sys.executable).with_name("envoy")
ADMIN = Target("127.0.0.1", 9901)
LLM = (Target("127.0.0.1", 8082), Target("127.0.0.1", 9082))
VOCODER = (Target("127.0.0.1", 8083),)
GATEWAY = (Target("127.0.0.1", 8081),)
ADMIN_SERVICE = (Target("127.0.0.1", 8084),)
EDGE = Target("127.0.0.1", 8080)
EGRESS = Target("127.0.0.1", 8087)


def plan(**changes: object) -> ProxyPlan:
    fields: dict = {"admin": ADMIN, "llm": LLM, "vocoder": VOCODER, "gateway": GATEWAY}
    return ProxyPlan(**(fields | changes))


@pytest.fixture
def certificate(tmp_path: Path) -> Tls:
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-keyout", str(key), "-out", str(chain)),
        ],
        check=True,
        capture_output=True,
    )
    secret = tmp_path / "secret.yaml"
    secret.write_text(render_tls_secret(str(chain), str(key)), encoding="utf-8")
    return Tls(str(secret))


def validate(text: str, directory: Path) -> None:
    path = directory / "envoy.yaml"
    path.write_text(text, encoding="utf-8")
    command = [str(ENVOY), "--mode", "validate", "-c", str(path), "--log-level", "error"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "listeners",
    [
        {"edge": EDGE},
        {"egress": EGRESS},
        {"edge": EDGE, "egress": EGRESS},
        {"edge": EDGE, "admin_service": ADMIN_SERVICE},
        {"edge": EDGE, "timings": Timings().scaled(0.01)},
    ],
    ids=["edge", "egress", "both", "administration", "scaled"],
)
def test_the_real_envoy_accepts_each_kind_of_proxy(listeners: dict, tmp_path: Path):
    validate(render(plan(**listeners)), tmp_path)


def test_the_real_envoy_accepts_tls(certificate: Tls, tmp_path: Path):
    validate(render(plan(edge=EDGE, tls=certificate)), tmp_path)


def test_administration_is_not_routed_unless_asked_for():
    text = render(plan(edge=EDGE, egress=EGRESS, admin_service=()))
    assert "antiphon.admin" not in text
    assert "/v1/admin/" not in text
    assert "/v1/admin/" not in render(plan(egress=EGRESS, admin_service=ADMIN_SERVICE))


def test_what_bypasses_the_gateway_asks_it_for_the_credentials():
    for route in routes(render(plan(edge=EDGE, admin_service=ADMIN_SERVICE))):
        cluster = route.get("route", {}).get("cluster", "gateway")
        filters = route.get("typed_per_filter_config", {})
        open_route = filters.get("envoy.filters.http.ext_authz", {}).get("disabled", False)
        assert open_route == (cluster == "gateway"), route["name"]


def routes(text: str) -> list[dict]:
    listener = yaml.safe_load(text)["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager["route_config"]["virtual_hosts"][0]["routes"]


def test_streams_have_no_timeout_and_retries_end_where_work_begins():
    for route in routes(render(plan(edge=EDGE))):
        if route["name"] in ("realtime", "api") or "antiphon." in route["name"]:
            assert route["route"]["timeout"] == "0s", route["name"]
        if route["name"] == "realtime" or "antiphon." in route["name"]:
            assert route["route"]["idle_timeout"] == "0s", route["name"]
        retry = route.get("route", {}).get("retry_policy", {}).get("retry_on", "")
        assert "5xx" not in retry
        assert "gateway-error" not in retry


def test_only_a_prompt_with_a_key_is_bound_to_a_replica():
    text = render(plan(egress=EGRESS))
    clusters = {c["name"]: c for c in yaml.safe_load(text)["static_resources"]["clusters"]}
    assert clusters["llm_affine"]["lb_policy"] == "RING_HASH"
    assert balancing(clusters["llm"]) == "envoy.load_balancing_policies.least_request"
    to_llm = [r for r in routes(text) if r["name"].startswith("antiphon.llm.v1.LlmService")]
    assert [r["route"]["cluster"] for r in to_llm] == ["llm_affine", "llm"]
    hashed = to_llm[0]["route"]["hash_policy"][0]["header"]["header_name"]
    assert hashed == to_llm[0]["match"]["headers"][0]["name"] == "x-antiphon-affinity"


def balancing(cluster: dict) -> str:
    (policy,) = cluster["load_balancing_policy"]["policies"]
    return policy["typed_extension_config"]["name"]


def test_no_cluster_holds_back_what_became_of_its_hosts():
    """Envoy's default gathers changes for a second, in which a host taken out still gets calls."""
    text = render(plan(edge=EDGE, egress=EGRESS, admin_service=ADMIN_SERVICE))
    for cluster in yaml.safe_load(text)["static_resources"]["clusters"]:
        assert cluster["common_lb_config"]["update_merge_window"] == "0s", cluster["name"]


@pytest.mark.parametrize("text", ["8080", "host:", ":80", "host:0", "host:70000", "host:x"])
def test_a_malformed_target_is_named(text: str):
    with pytest.raises(ValueError, match="host:port"):
        Target.parse(text)


def test_a_proxy_without_listener_is_refused():
    with pytest.raises(ValueError, match="edge or an egress"):
        plan()


@pytest.mark.parametrize(
    ("name", "listeners"),
    [
        (
            "edge",
            {
                "edge": Target("0.0.0.0", 8080),
                "gateway": (Target("gateway", 8081),),
                "admin_service": (Target("admin", 8084),),
            },
        ),
        ("egress", {"egress": Target("127.0.0.1", 8088), "gateway": ()}),
    ],
)
def test_the_committed_configurations_are_current(name: str, listeners: dict, tmp_path: Path):
    services = {"llm": (Target("llm", 8082),), "vocoder": (Target("vocoder", 8083),)}
    text = (ROOT / "deploy" / "envoy" / f"{name}.yaml").read_text(encoding="utf-8")
    # The edge's holds the description of AdminService: a change of its protos changes the file.
    assert text == render(plan(**services, **listeners)), "see deploy/envoy/README.md"
    validate(text, tmp_path)
