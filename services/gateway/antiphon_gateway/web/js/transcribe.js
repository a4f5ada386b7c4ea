// The "transcribe a file" panel.

import { call } from "./api.js";
import { byId, showError } from "./dom.js";

/** Makes the transcribe panel work. */
export function setUpTranscribe() {
  const input = byId("transcribe-file");
  const drop = byId("drop");
  const name = byId("transcribe-name");
  input.addEventListener("change", () => {
    if (input.files.length) name.textContent = input.files[0].name;
  });
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length) {
      input.files = event.dataTransfer.files;
      name.textContent = input.files[0].name;
    }
  });
  byId("transcribe-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = byId("transcribe-button");
    button.disabled = true;
    showError(byId("transcribe-error"), "");
    byId("transcribe-status").textContent = "listening to the file";
    try {
      await transcribe(input.files[0]);
    } catch (error) {
      byId("transcribe-status").textContent = "";
      showError(byId("transcribe-error"), error.message);
    }
    button.disabled = false;
  });
}

async function transcribe(file) {
  const form = new FormData();
  form.append("file", file);
  form.append("model", "whisper-1");
  const began = performance.now();
  const answer = await (await call("/v1/audio/transcriptions", { form })).json();
  const took = (performance.now() - began) / 1000;
  const result = byId("transcribe-text");
  result.textContent = answer.text || "(no speech)";
  result.hidden = false;
  const seconds = answer.usage?.seconds;
  byId("transcribe-status").textContent = seconds
    ? `${seconds.toFixed(1)} s of audio in ${took.toFixed(2)} s`
    : `done in ${took.toFixed(2)} s`;
}
