"""The page in a real browser against scripted backends."""

from __future__ import annotations

import array
import asyncio
import math
import random
import wave
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.async_api import expect
from realtime_gateway import RealtimeGateway
from support.browser import CHROMIUM, PROBE, browser_with, levels, opened
from support.waiting import until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="chromium is not installed"),
]


def write_speech(path: Path, plan: str) -> None:
    """A WAV of half seconds: ``x`` is babble, ``.`` silence."""
    noise = random.Random(5)
    samples = array.array("h")
    for mark in plan:
        for i in range(24_000):
            swell = 0.5 - 0.5 * math.cos(2 * math.pi * 6 * i / 48_000)
            pitch = 130 + 40 * math.sin(2 * math.pi * 2 * i / 48_000)
            tone = sum(math.sin(2 * math.pi * pitch * k * i / 48_000) / k for k in range(1, 9))
            value = (tone * 0.3 + noise.uniform(-0.15, 0.15)) * swell * 20_000
            samples.append(int(value) if mark == "x" else 0)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes(samples.tobytes())


async def test_chat_streams_shows_speed_and_keeps_markup_as_text(
    gateway: RealtimeGateway,
) -> None:
    gateway.script.words = ("Use **bold**", " and `code`", ", not <img src=x onerror=alert(1)>.")
    gateway.script.word_delay = 0.02
    async with browser_with() as browser, opened(browser, gateway.url, "chat") as page:
        await page.locator("#chat-input").fill("How?")
        await page.keyboard.press("Enter")
        answer = page.locator(".bubble.assistant")
        await expect(answer).to_have_text("Use bold and code, not <img src=x onerror=alert(1)>.")
        assert await answer.locator("strong").text_content() == "bold"
        assert await answer.locator("img").count() == 0
        await expect(page.locator("#chat-speed")).to_contain_text("first token")
        gateway.script.words = tuple(" word" for _ in range(900))
        await page.locator("#chat-input").fill("Go on")
        await page.keyboard.press("Enter")
        await until(lambda: gateway.running.llm == 1)
        await page.locator("#chat-stop").click()
        await until(lambda: gateway.running.llm == 0, 2.0)
        await expect(page.locator("#chat-send")).to_be_visible()


async def test_tabs_by_keyboard_and_the_small_tools(
    gateway: RealtimeGateway, tmp_path: Path
) -> None:
    write_speech(tmp_path / "say.wav", "x")
    async with browser_with() as browser, opened(browser, gateway.url, "voice") as page:
        await page.locator("#tab-voice").focus()
        await page.keyboard.press("End")
        await expect(page.locator("#transcribe")).to_be_visible()
        await page.locator("#transcribe-file").set_input_files(tmp_path / "say.wav")
        await page.locator("#transcribe-button").click()
        await expect(page.locator("#transcribe-text")).to_have_text("what time is it")
        await page.locator("#tab-transcribe").focus()
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator("#speak")).to_be_visible()


async def test_a_voice_turn_plays_audio_and_a_second_one_interrupts_it(
    gateway: RealtimeGateway, tmp_path: Path
) -> None:
    write_speech(tmp_path / "mic.wav", ".xx.....xx....")
    gateway.script.words = tuple(f" number {i}," for i in range(40))
    gateway.script.word_delay = 0.05
    microphone = f"--use-file-for-fake-audio-capture={tmp_path / 'mic.wav'}%noloop"
    async with browser_with(microphone) as browser:
        async with opened(browser, gateway.url, "voice") as page:
            await page.evaluate(PROBE)
            await page.locator("#talk").click()
            orb = page.locator("#talk")
            await expect(orb).to_have_attribute("data-phase", "speaking", timeout=15_000)
            assert max(await levels(page, 0.5)) > 0.05, "the reply is audible"
            assert await page.locator("#read-first").text_content() != "–"
            await expect(orb).to_have_attribute("data-phase", "hearing", timeout=15_000)
            after = await levels(page, 0.6)
            assert max(after[-len(after) // 3 :]) < 0.01, "the interrupted reply is silent"
            await expect(page.locator(".bubble.interrupted")).to_have_count(1)
            assert await page.locator(".bubble.user").first.text_content() == "what time is it"
            assert (await page.locator("#read-underruns").text_content() or "").isdigit()
            await until_async(lambda: len(gateway.running.prompts) >= 2)
            heard = gateway.running.prompts[1].chat.messages[2].parts[0].text
            spoken = "".join(gateway.script.words)
            assert heard and spoken.startswith(heard) and len(heard) < len(spoken) / 2
            await page.locator("#talk").click()
            await expect(orb).to_have_attribute("data-phase", "idle")
            await until_async(lambda: gateway.running.none)


async def test_a_refused_connection_is_explained(gateway: RealtimeGateway) -> None:
    async with browser_with() as browser:
        page = await browser.new_page()
        await page.goto(f"{gateway.url}/voice")
        await expect(page.locator("#health")).to_have_text("ready")
        gateway.lifecycle.draining()
        await page.locator("#talk").click()
        await expect(page.locator("#voice-error")).to_contain_text("refused")


async def until_async(condition: Callable[[], bool]) -> None:
    await until(condition, 10.0)
    await asyncio.sleep(0)
