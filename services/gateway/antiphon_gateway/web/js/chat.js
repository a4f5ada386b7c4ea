// The chat panel: streams completions, shows their speed, can be stopped.

import { call, events } from "./api.js";
import { byId, make, showError } from "./dom.js";
import { render } from "./markdown.js";
import { selectedModel } from "./status.js";

/** Makes the chat panel work. */
export function setUpChat() {
  const chat = new Chat();
  const input = byId("chat-input");
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    chat.send(input.value.trim());
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("chat-form").requestSubmit();
    }
  });
  byId("chat-stop").addEventListener("click", () => chat.stop());
  byId("chat-clear").addEventListener("click", () => chat.clear());
  for (const button of document.querySelectorAll("[data-prompt]")) {
    button.addEventListener("click", () => chat.send(button.dataset.prompt));
  }
}

class Chat {
  constructor() {
    this.messages = [];
    this.abort = null;
  }

  clear() {
    this.stop();
    this.messages = [];
    byId("chat-log").replaceChildren();
    byId("chat-empty").hidden = false;
    byId("chat-speed").textContent = "";
    showError(byId("chat-error"), "");
  }

  stop() {
    this.abort?.abort();
  }

  async send(text) {
    if (!text || this.abort) return;
    byId("chat-input").value = "";
    byId("chat-empty").hidden = true;
    showError(byId("chat-error"), "");
    this.messages.push({ role: "user", content: text });
    this.#bubble("user").append(text);
    const bubble = this.#bubble("assistant");
    bubble.classList.add("pending");
    this.abort = new AbortController();
    this.#busy(true);
    let answer = "";
    try {
      for await (const piece of this.#stream()) {
        answer += piece;
        bubble.replaceChildren(render(answer));
        byId("chat-log").scrollTop = byId("chat-log").scrollHeight;
      }
    } catch (error) {
      if (error.name !== "AbortError") showError(byId("chat-error"), error.message);
    }
    bubble.classList.remove("pending");
    if (answer) this.messages.push({ role: "assistant", content: answer });
    else bubble.remove();
    this.abort = null;
    this.#busy(false);
  }

  async *#stream() {
    const began = performance.now();
    const speed = { first: null, tokens: 0 };
    const response = await call("/v1/chat/completions", {
      json: {
        model: selectedModel(),
        messages: this.messages,
        stream: true,
        stream_options: { include_usage: true },
      },
      signal: this.abort.signal,
    });
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) speed.tokens = chunk.usage.completion_tokens;
      const text = chunk.choices[0]?.delta.content;
      if (!text) continue;
      speed.first ??= performance.now();
      speed.last = performance.now();
      yield text;
    }
    showSpeed(began, speed);
  }

  #busy(busy) {
    byId("chat-send").hidden = busy;
    byId("chat-stop").hidden = !busy;
    byId(busy ? "chat-stop" : "chat-input").focus();
  }

  #bubble(role) {
    const bubble = make("li", "", `bubble ${role}`);
    byId("chat-log").append(bubble);
    return bubble;
  }
}

function showSpeed(began, { first, last, tokens }) {
  if (first === null) return;
  const parts = [`first token ${Math.round(first - began)} ms`];
  if (tokens > 1 && last > first) {
    parts.push(`${(((tokens - 1) * 1000) / (last - first)).toFixed(1)} tokens/s`);
  }
  if (tokens) parts.push(`${tokens} tokens`);
  byId("chat-speed").textContent = parts.join(" · ");
}
