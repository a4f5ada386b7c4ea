// Runs the openai package's realtime clients against a server: a spoken turn, an interrupted story
// that is truncated, a tool call, then another connection by the browser's class. Prints what it saw
// as one JSON object.
//
//   node realtime.mjs <base url> <model> <question.wav>

import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { OpenAIRealtimeWebSocket } from "openai/realtime/websocket";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
import { WebSocket } from "ws";

globalThis.WebSocket ??= WebSocket;
const [baseURL, model, file] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused" });
const question = readFileSync(file).subarray(44);
const FRAME_BYTES = 960;
const FRAME_MS = 20;
const LIMIT_MS = 100_000;
const STORY = "Tell me a very long story about a fox, a raven and a wolf.";
const weather = {
  type: "function",
  name: "weather",
  description: "Tells the weather of a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
    required: ["city"],
    additionalProperties: false,
  },
};

/** Keeps every event, and waits for the next of a type. */
class Watched {
  constructor(socket) {
    this.socket = socket;
    this.events = [];
    this.waiting = [];
    socket.on("event", (event) => {
      this.events.push(event);
      this.waiting = this.waiting.filter(([type, resolve]) => type !== event.type || resolve(event));
    });
    socket.on("error", (error) => this.events.push({ type: "error", error }));
  }

  next(type) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${type}; errors: ${JSON.stringify(this.of("error"))}`)), LIMIT_MS);
      const settle = (event) => (clearTimeout(timer), resolve(event));
      this.waiting.push([type, settle]);
    });
  }

  of(type) {
    return this.events.filter((event) => event.type === type);
  }
}

/** Sends frames at a microphone's pace: what was said, else silence. */
class Microphone {
  constructor(socket) {
    this.said = Buffer.alloc(0);
    const began = performance.now();
    let sent = 0;
    this.timer = setInterval(() => {
      while (sent * FRAME_MS < performance.now() - began) {
        const frame = Buffer.alloc(FRAME_BYTES);
        this.said.copy(frame, 0, 0, FRAME_BYTES);
        this.said = this.said.subarray(FRAME_BYTES);
        socket.send({ type: "input_audio_buffer.append", audio: frame.toString("base64") });
        sent += 1;
      }
    }, FRAME_MS / 2);
  }

  say(audio) {
    this.said = Buffer.concat([this.said, audio]);
  }

  stop() {
    clearInterval(this.timer);
  }
}

function write(socket, text) {
  const item = { type: "message", role: "user", content: [{ type: "input_text", text }] };
  socket.send({ type: "conversation.item.create", item });
}

async function conversation() {
  const socket = new OpenAIRealtimeWS({ model }, client);
  const watched = new Watched(socket);
  await watched.next("session.created");
  const session = { type: "realtime", model, tools: [weather], tool_choice: "none", max_output_tokens: 24 };
  socket.send({ type: "session.update", session });
  await watched.next("session.updated");
  const microphone = new Microphone(socket);
  microphone.say(question);
  await watched.next("response.done");

  write(socket, STORY);
  socket.send({ type: "response.create", response: { max_output_tokens: 400 } });
  const first = await watched.next("response.output_audio.delta");
  microphone.say(question);
  const cut = await watched.next("response.done");
  socket.send({ type: "conversation.item.truncate", item_id: first.item_id, content_index: 0, audio_end_ms: 50 });
  const truncated = await watched.next("conversation.item.truncated");
  await watched.next("response.done");
  microphone.stop();

  // Last: a small model goes on to answer everything in the words of a tool's output.
  write(socket, "How is the weather in Paris?");
  const choice = { type: "function", name: "weather" };
  socket.send({ type: "response.create", response: { tool_choice: choice, max_output_tokens: 200 } });
  const [call] = await Promise.all(
    ["response.function_call_arguments.done", "response.done"].map((type) => watched.next(type)),
  );
  const item = { type: "function_call_output", call_id: call.call_id, output: "Sunny." };
  socket.send({ type: "conversation.item.create", item });
  socket.send({ type: "response.create" });
  await watched.next("response.done");
  socket.close();
  return { events: watched.events, call, cut, truncated };
}

async function again() {
  const socket = new OpenAIRealtimeWebSocket({ model, dangerouslyAllowBrowser: true }, client);
  const watched = new Watched(socket);
  await watched.next("session.created");
  socket.send({ type: "session.update", session: { type: "realtime", max_output_tokens: 16 } });
  write(socket, "Say hello.");
  socket.send({ type: "response.create" });
  const done = await watched.next("response.done");
  socket.close();
  return { done, audio: watched.of("response.output_audio.delta").length };
}

const first = await conversation();
const transcripts = first.events.filter((event) => event.type.endsWith("input_audio_transcription.completed"));
console.log(
  JSON.stringify({
    transcripts: transcripts.map((event) => event.transcript),
    errors: first.events.filter((event) => event.type === "error"),
    audio: first.events.filter((event) => event.type === "response.output_audio.delta").length,
    call: first.call,
    cut: first.cut.response,
    truncated: first.truncated,
    again: await again(),
  }),
);
