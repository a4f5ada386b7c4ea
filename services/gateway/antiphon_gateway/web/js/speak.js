// The "speak this text" panel.

import { call } from "./api.js";
import { byId, showError } from "./dom.js";

/** Makes the speak panel work. */
export function setUpSpeak() {
  const speed = byId("speak-speed");
  speed.addEventListener("input", () => {
    byId("speak-speed-value").textContent = `${Number(speed.value).toFixed(1)}×`;
  });
  byId("speak-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = byId("speak-button");
    button.disabled = true;
    showError(byId("speak-error"), "");
    try {
      await speak();
    } catch (error) {
      showError(byId("speak-error"), error.message);
    }
    button.disabled = false;
  });
}

async function speak() {
  const began = performance.now();
  const response = await call("/v1/audio/speech", {
    json: {
      model: "tts-1",
      input: byId("speak-text").value,
      voice: byId("speak-voice").value || "alloy",
      speed: Number(byId("speak-speed").value),
      response_format: "wav",
    },
  });
  const audio = byId("speak-audio");
  const recording = await response.blob();
  if (audio.src) URL.revokeObjectURL(audio.src);
  audio.src = URL.createObjectURL(recording);
  audio.hidden = false;
  const took = (performance.now() - began) / 1000;
  byId("speak-status").textContent = `made in ${took.toFixed(2)} s`;
  audio.addEventListener(
    "loadedmetadata",
    () => {
      const length = audio.duration;
      byId("speak-status").textContent =
        `${length.toFixed(1)} s of speech in ${took.toFixed(2)} s ` +
        `(${(length / took).toFixed(1)}× real time)`;
    },
    { once: true },
  );
  await audio.play();
}
