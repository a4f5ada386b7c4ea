// The voice panel: wires the conversation to its elements.

import { byId } from "../dom.js";
import { selectedModel } from "../status.js";
import { Conversation } from "./conversation.js";
import { Transcript } from "./transcript.js";

const START_HINT = "Press to start. Talk over an answer to interrupt it.";

/** Makes the voice panel work. */
export function setUpVoice() {
  const button = byId("talk");
  const error = byId("voice-error");
  const transcript = new Transcript(byId("transcript"), byId("transcript-empty"));
  const conversation = new Conversation({
    transcript,
    phase(phase, label) {
      button.dataset.phase = phase;
      byId("talk-state").textContent = label;
      const idle = phase === "idle";
      byId("talk-label").textContent = idle ? "Start talking" : "Stop";
      byId("talk-hint").textContent = idle ? START_HINT : "Press to stop.";
    },
    loudness(value) {
      button.style.setProperty("--loudness", Math.min(1, value * 8).toFixed(3));
    },
    first: (ms) => show("read-first", ms),
    audible: (ms) => show("read-audible", ms),
    underruns(count) {
      byId("read-underruns").textContent = String(count);
    },
    error(message) {
      error.textContent = message;
      error.hidden = false;
    },
  });
  button.addEventListener("click", async () => {
    if (conversation.phase !== "idle") {
      await conversation.stop();
      return;
    }
    error.hidden = true;
    transcript.clear();
    try {
      await conversation.start(sessionSettings());
    } catch (failure) {
      error.textContent = explain(failure);
      error.hidden = false;
    }
  });
}

function show(id, milliseconds) {
  byId(id).textContent = `${Math.round(milliseconds)} ms`;
}

function sessionSettings() {
  const voice = byId("voice-name").value;
  return {
    type: "realtime",
    model: selectedModel(),
    audio: {
      input: {
        transcription: {},
        turn_detection: {
          type: "server_vad",
          silence_duration_ms: Number(byId("patience").value),
        },
      },
      output: voice ? { voice } : {},
    },
  };
}

function explain(failure) {
  if (failure.name === "NotAllowedError") {
    return "The browser refused the microphone. Allow it for this site and try again.";
  }
  if (failure.name === "NotFoundError") return "No microphone was found.";
  return failure.message;
}
