"""The page's voice conversation in headless Chromium, with a spoken microphone, on real models."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest
from antiphon_cli.talk.audio import write_wav
from antiphon_cli.talk.speech import word_error_rate
from piper_speech import silence, speak
from playwright.async_api import Page, expect
from support.browser import CHROMIUM, PROBE, browser_with, levels, opened
from support.suite import RunningSuite

pytestmark = [
    pytest.mark.real,
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="chromium is not installed"),
]

RATE = 48_000
STORY = "Please tell me a long story about a fox."
FRANCE = "What is the capital of France?"
ARTIFACTS = Path(__file__).parents[2] / "artifacts"
AUDIBLE, SILENT = 0.05, 0.01
SILENT_AFTER_S = 0.2
HEAP_GROWTH = 3 * 2**20
"""Of a turn; the transcript's bubbles stay on the page."""


def microphone(path: Path, *parts: str | float) -> str:
    """The flag of a microphone that says texts and is silent for seconds, over and over."""
    audio = [speak(part, RATE) if isinstance(part, str) else silence(part, RATE) for part in parts]
    write_wav(path, np.concatenate(audio), RATE)
    return f"--use-file-for-fake-audio-capture={path}"


async def heap(page: Page) -> int:
    """Bytes of living script objects."""
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.collectGarbage")
    usage = await session.send("Runtime.getHeapUsage")
    await session.detach()
    return usage["usedSize"]


async def user_text(page: Page, place: int) -> str:
    return (await page.locator(".bubble.user").nth(place).text_content()) or ""


async def test_a_conversation_is_heard_and_can_be_interrupted(
    suite: RunningSuite, tmp_path: Path
) -> None:
    flag = microphone(tmp_path / "mic.wav", 1.0, STORY, 7.0)
    async with browser_with(flag) as browser:
        async with opened(browser, suite.url, "voice") as page:
            await page.evaluate(PROBE)
            before = await heap(page)
            orb = page.locator("#talk")
            await orb.click()
            await expect(orb).to_have_attribute("data-phase", "speaking", timeout=30_000)
            assert max(await levels(page, 1.0)) > AUDIBLE, "the reply is audible"
            await expect(orb).to_have_attribute("data-phase", "hearing", timeout=30_000)
            after = await levels(page, 0.8)
            quiet = after[int(len(after) * SILENT_AFTER_S / 0.8) + 1 :]
            assert max(quiet) < SILENT, "an interrupted reply is silent at once"
            await expect(page.locator(".bubble.interrupted")).to_have_count(1)
            await expect(orb).to_have_attribute("data-phase", "speaking", timeout=30_000)
            assert max(await levels(page, 1.0)) > AUDIBLE
            assert word_error_rate(STORY, await user_text(page, 0)) <= 0.2
            assert word_error_rate(STORY, await user_text(page, 1)) <= 0.2
            for id in ("read-first", "read-audible"):
                assert (await page.locator(f"#{id}").text_content() or "").endswith(" ms")
            ARTIFACTS.mkdir(exist_ok=True)
            await page.screenshot(path=ARTIFACTS / "voice.png")
            assert await page.locator("#read-underruns").text_content() == "0"
            assert await page.locator("#voice-error").is_hidden()
            await orb.click()
            await expect(orb).to_have_attribute("data-phase", "idle")
            assert await heap(page) - before < HEAP_GROWTH


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_minutes_of_talk_leave_the_heap_flat(suite: RunningSuite, tmp_path: Path) -> None:
    flag = microphone(tmp_path / "mic.wav", 1.0, FRANCE, 9.0)
    async with browser_with(flag) as browser:
        async with opened(browser, suite.url, "voice") as page:
            await page.locator("#talk").click()
            await asyncio.sleep(60)
            warm, started = await heap(page), time.monotonic()
            await asyncio.sleep(540)
            assert await heap(page) - warm < HEAP_GROWTH, time.monotonic() - started
            assert await page.locator(".bubble.user").count() > 20
            assert await page.locator("#voice-error").is_hidden()
