"""Headless Chromium on the page: its fake microphone, its errors, and what it sounds like."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright, expect

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
)


@contextlib.asynccontextmanager
async def browser_with(*flags: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=[*FLAGS, *flags]
        )
        yield browser
        await browser.close()


@contextlib.asynccontextmanager
async def opened(browser: Browser, url: str, panel: str) -> AsyncIterator[Page]:
    """The page at a panel; leaving it fails when the console had an error."""
    page = await browser.new_page(viewport={"width": 1180, "height": 780})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: problems.append(message.text) if message.type == "error" else None,
    )
    await page.goto(f"{url}/#{panel}")
    await expect(page.locator("#health")).to_have_text("ready")
    yield page
    await page.close()
    assert problems == []


async def levels(page: Page, seconds: float) -> list[float]:
    """Loudness at the output of the audio graph, about every 10 ms."""
    return await page.evaluate(
        """async (seconds) => {
             const found = [];
             const end = performance.now() + seconds * 1000;
             const data = new Float32Array(256);
             while (performance.now() < end) {
               window.probe.getFloatTimeDomainData(data);
               found.push(Math.max(...data.map(Math.abs)));
               await new Promise((next) => setTimeout(next, 10));
             }
             return found;
           }""",
        seconds,
    )


PROBE = """() => {
  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode) {
      window.probe = new AnalyserNode(this.context, { fftSize: 256 });
      connect.call(this, window.probe);
    }
    return connect.call(this, target, ...rest);
  };
}"""
