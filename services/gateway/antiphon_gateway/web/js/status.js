// Readiness of the suite, and the models and voices it serves.

import { ApiError, call, useKey } from "./api.js";
import { byId, make } from "./dom.js";

const POLL_MS = 3000;
const WORDS = {
  starting: "starting",
  draining: "shutting down",
  asleep: "asleep",
  no_llm_backend: "no language model",
  no_vocoder_backend: "no voice",
  no_recognition_backend: "no recogniser",
};

let catalogLoaded = false;

/** The model that the header names. */
export function selectedModel() {
  return byId("model").value;
}

/** Follows readiness and fills the choices once the suite is ready. */
export function setUpStatus() {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value);
    byId("key-form").hidden = true;
    catalogLoaded = false;
    poll();
  });
  poll();
  setInterval(poll, POLL_MS);
}

async function poll() {
  const pill = byId("health");
  try {
    const { status, reasons } = await (await fetch("/health/ready")).json();
    const ready = status === "ready";
    pill.dataset.state = ready ? "ready" : "starting";
    pill.textContent = ready ? "ready" : reasons.map((name) => WORDS[name] ?? name).join(", ");
    if (ready && !catalogLoaded) await loadCatalog();
  } catch {
    pill.dataset.state = "down";
    pill.textContent = "not reachable";
  }
}

async function loadCatalog() {
  try {
    const models = (await (await call("/v1/models")).json()).data;
    const chat = models.filter((model) => model.capabilities?.includes("chat"));
    fill(byId("model"), (chat.length ? chat : models).map(({ id }) => [id, id]));
    const voices = (await (await call("/v1/audio/voices")).json()).data;
    for (const id of ["voice-name", "speak-voice"]) {
      fill(byId(id), [["", "default"], ...voices.map((voice) => [voice.id, voice.name])]);
    }
    catalogLoaded = true;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) byId("key-form").hidden = false;
    else throw error;
  }
}

function fill(select, choices) {
  const before = select.value;
  select.replaceChildren(
    ...choices.map(([value, label]) => {
      const option = make("option", label);
      option.value = value;
      return option;
    }),
  );
  if (choices.some(([value]) => value === before)) select.value = before;
}
