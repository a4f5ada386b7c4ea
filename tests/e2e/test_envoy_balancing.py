"""Replicas behind the real Envoy: affinity, retries, ejection, drains, lost and recycled ports."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from antiphon.llm.v1 import generate_pb2
from antiphon.llm.v1.llm_service_pb2_grpc import LlmServiceStub as LlmStub
from support.edge import Stack, channel, eventually, stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY_FLAGS = ("--drain-notice-seconds", "1.5", "--drain-grace-seconds", "10")
DRAIN_DELAY = 1.5
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with stack(
        tmp_path_factory.mktemp("balancing"),
        replicas={"a": {"drain_delay": DRAIN_DELAY}, "b": {"drain_delay": DRAIN_DELAY}},
        gateways={"one": GATEWAY_FLAGS, "two": GATEWAY_FLAGS},
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def made(running: Stack) -> Stack:
    """The stack with everybody at work, whatever the test before did."""
    dead = [n for n in running.replica_ports if running.children[n].process.returncode is not None]
    for name in dead:
        await running.start_replica(name, drain_delay=DRAIN_DELAY)
    for name in running.gateway_ports:
        if running.children[name].process.returncode is not None:
            await running.start_gateway(name, *GATEWAY_FLAGS)
    await running.ready()
    return running


@pytest_asyncio.fixture(loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def llm(running: Stack) -> AsyncIterator[LlmStub]:
    """What the gateways call, called without one."""
    async with channel(running.proxy.plan.egress) as calls:
        yield LlmStub(calls)


def replica_of(response: httpx.Response) -> str:
    """Who answered."""
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"][1]


async def test_repeats_of_a_long_prompt_go_to_one_replica(
    made: Stack, http: httpx.AsyncClient, record_property: Callable[[str, object], None]
) -> None:
    prompts = [f"{number} " + "context " * 400 for number in range(12)]
    found: dict[str, Counter[str]] = {prompt: Counter() for prompt in prompts}
    for turn in range(10):
        for prompt in prompts:
            answer = await made.chat(http, prompt + f" turn {turn}")
            found[prompt][replica_of(answer)] += 1
    kept = sum(counts.most_common(1)[0][1] for counts in found.values())
    record_property("affinity_share", kept / 120)
    assert kept >= 0.95 * 120, found
    owners = Counter(counts.most_common(1)[0][0] for counts in found.values())
    assert set(owners) == {"a", "b"}, "one replica owns every prompt"


async def test_short_prompts_go_where_there_is_least_to_do(
    made: Stack, http: httpx.AsyncClient, llm: LlmStub
) -> None:
    """A call that stays on one replica sends the short ones to the other."""
    held = llm.Generate(generate_pb2.GenerateRequest(text="words 5000", model="m"))
    _, name = await held.read(), await held.read()
    busy = name.delta.text[1]
    answers = [replica_of(await made.chat(http, "short")) for _ in range(30)]
    held.cancel()
    # A status poll of a gateway may make both equal for a moment; half would be chance.
    assert answers.count(busy) <= 6, answers


async def test_a_replica_killed_while_idle_costs_nobody_a_request(
    made: Stack, http: httpx.AsyncClient
) -> None:
    """Its connections are refused before any work: each request runs once, on the other."""
    await made.children["a"].stop(signal.SIGKILL)
    for number in range(10):
        assert replica_of(await made.chat(http, f"after the kill {number}")) == "b"
        assert made.executions(f"after the kill {number}") == Counter(b=1)


async def test_a_replica_killed_at_work_is_not_replaced(
    made: Stack, http: httpx.AsyncClient
) -> None:
    """Before the first byte: it had begun, so there is one execution and one clean error."""
    waiting = asyncio.create_task(made.chat(http, "hang"))
    await eventually(lambda: made.executions("hang"))
    (victim,) = made.executions("hang")
    await made.children[victim].stop(signal.SIGKILL)
    response = await waiting
    assert (response.status_code, response.json()["error"]["code"]) == (502, "bad_gateway")
    assert sum(made.executions("hang").values()) == 1


async def test_a_stream_whose_replica_is_killed_ends_with_one_error(
    made: Stack, http: httpx.AsyncClient
) -> None:
    prompt = "words 50000"  # More than all buffers on the way hold
    body = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": prompt}],
    }
    url = f"{made.proxy.url}/v1/chat/completions"
    frames: list[str] = []
    async with http.stream("POST", url, json=body) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                frames.append(line)
            if len(frames) == 5:
                (victim,) = made.executions(prompt)
                await made.children[victim].stop(signal.SIGKILL)
    assert sum('"error"' in frame for frame in frames) == 1, frames[-3:]
    assert '"error"' in frames[-1]
    assert "data: [DONE]" not in frames
    assert sum(made.executions(prompt).values()) == 1


async def test_a_refusal_is_told_and_not_tried_elsewhere(
    made: Stack, http: httpx.AsyncClient
) -> None:
    """A full queue is the model's answer, and an error is never repeated, whoever asks for it."""
    assert (await made.chat(http, "refuse")).status_code == 429
    assert sum(made.executions("refuse").values()) == 1
    wishes = {"x-envoy-retry-on": "5xx", "x-envoy-max-retries": "3"}
    body = {"model": "m", "messages": [{"role": "user", "content": "break"}]}
    url = f"{made.proxy.url}/v1/chat/completions"
    assert (await http.post(url, json=body, headers=wishes)).status_code == 500
    assert sum(made.executions("break").values()) == 1


async def test_a_draining_replica_loses_nothing(made: Stack, http: httpx.AsyncClient) -> None:
    """What runs on it ends there, what comes goes to the other, under a steady load."""
    await drained_under_load(made, http, "a")


async def test_a_draining_gateway_loses_nothing(made: Stack, http: httpx.AsyncClient) -> None:
    await drained_under_load(made, http, "one")


async def drained_under_load(made: Stack, http: httpx.AsyncClient, name: str) -> None:
    prompt = f"words {20 if name == 'a' else 21}"
    before = sum(made.executions(prompt).values())
    answers: list[httpx.Response] = []
    stop = asyncio.Event()

    async def client() -> None:
        while not stop.is_set():
            answers.append(await made.chat(http, prompt))

    clients = [asyncio.create_task(client()) for _ in range(8)]
    await asyncio.sleep(0.5)
    await made.children[name].stop(signal.SIGTERM)
    await asyncio.sleep(0.5)
    stop.set()
    await asyncio.gather(*clients)
    assert made.children[name].process.returncode == 0
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    whole = [answer for answer in answers if answer.text.count("word ") == int(prompt.split()[1])]
    assert len(whole) == len(answers)
    assert sum(made.executions(prompt).values()) - before == len(answers)


async def test_a_recycled_port_never_answers_for_another_model(
    made: Stack, http: httpx.AsyncClient
) -> None:
    """The address of a lost replica comes back with another model, before anybody noticed."""
    await made.children["a"].stop(signal.SIGKILL)
    await made.start_replica("a", model="other")
    await made.proxy.wait_healthy("llm", set(made.replica_ports.values()))
    codes = Counter[int]()
    for number in range(40):
        answer = await made.chat(http, f"whose {number}")
        codes[answer.status_code] += 1
        if answer.status_code == 200:
            assert replica_of(answer) == "b"
        else:
            assert answer.json()["error"]["code"] == "model_not_found"
    assert codes[200], "the replica that has the model got nothing"
    assert made.executions("whose 0").keys() <= {"b"}
    await made.children["a"].stop(signal.SIGKILL)


async def test_a_failing_replica_is_ejected_and_comes_back(made: Stack, llm: LlmStub) -> None:
    """It answers its health checks, but five calls in a row were lost there."""
    ports = set(made.replica_ports.values())
    port = made.replica_ports["a"]
    await made.proxy.wait_healthy("llm", ports)  # Whatever the tests before did to it
    await answers_from_all(llm)  # So no failure before counts
    before = len(made.proxy.access_log())
    lost = 0
    async with asyncio.timeout(30):
        while port not in await ejected(made):
            # Close together: a gateway's poll between them that succeeds starts the count anew.
            for _ in range(20):
                lost += await outcome(llm, "lost a") == "lost"
    assert lost >= 5
    after: Counter[str] = Counter()
    for _ in range(20):
        found = await outcome(llm, "lost a")
        if port not in await ejected(made):
            break  # A slow machine: its time is over
        after[found] += 1
    # The first may have come to the proxy's worker before the decision.
    assert after["b"], after
    assert after["lost"] <= 1, after
    await made.proxy.wait_healthy("llm", ports)
    await answers_from_all(llm)
    assert longest_failing(made.proxy.access_log()[before:], port) <= 7


async def ejected(made: Stack) -> set[int]:
    """Ports of the replicas that the proxy has taken out for their failures."""
    hosts = await made.proxy.hosts("llm")
    return {
        port for port, host in hosts.items() if host["health_status"].get("failed_outlier_check")
    }


async def answers_from_all(llm: LlmStub) -> None:
    """Until each replica has answered a call."""
    found: set[str] = set()
    async with asyncio.timeout(30):
        while found != {"a", "b"}:
            found.add(await outcome(llm, "back"))


def longest_failing(accesses: list[dict[str, Any]], port: int) -> int:
    """The most calls in a row that failed at a replica; polls of the gateways count too."""
    longest = run = 0
    for line in accesses:
        upstream = line["upstream"] or ""
        if line["route"] == "antiphon.llm.v1.LlmService" and upstream.endswith(f":{port}"):
            run = run + 1 if line["grpc_code"] == UNAVAILABLE else 0
            longest = max(longest, run)
    return longest


async def test_at_most_half_of_the_replicas_are_ejected(made: Stack, llm: LlmStub) -> None:
    async with asyncio.timeout(30):
        while not await ejected(made):
            assert await outcome(llm, "lost everywhere") == "lost"
    for _ in range(20):
        assert await outcome(llm, "lost everywhere") == "lost", "the other still gets its calls"
        assert len(await ejected(made)) <= 1


async def outcome(llm: LlmStub, prompt: str) -> str:
    """Who answered a call to the egress listener, or ``lost``."""
    request = generate_pb2.GenerateRequest(text=prompt, model="m")
    try:
        events = [event async for event in llm.Generate(request)]
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return "lost"
    return "".join(event.delta.text for event in events)[1]
