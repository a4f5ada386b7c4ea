// Runs the openai package, as its users have it, against a server. Prints one JSON object: for each
// scenario asked for, what it saw. The tests judge it.
//
//   node driver.mjs <base url> <scenario>...

import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, ...names] = process.argv.slice(2);
const model = "smollm2-135m-instruct";
const question = [{ role: "user", content: "What is the capital of France?" }];
const greedy = { model, messages: question, temperature: 0, max_completion_tokens: 32 };
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0, timeout: 120_000 });
const Fruit = z.object({ colour: z.enum(["red", "green", "blue"]), ripe: z.boolean() });
const weather = {
  name: "weather",
  description: "Tells the weather of a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
    required: ["city"],
    additionalProperties: false,
  },
};

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

async function refusal(call) {
  try {
    await call();
  } catch (error) {
    const { status, code, param, type } = error;
    return { kind: error.constructor.name, status, code, param, type, requestId: !!error.requestID };
  }
  return null;
}

const scenarios = {
  async models() {
    const listed = await all(client.models.list());
    return { ids: listed.map((item) => item.id), one: await client.models.retrieve(model) };
  },

  async chat() {
    const { data, response } = await client.chat.completions.create(greedy).withResponse();
    return { data, id: data._request_id, requestId: response.headers.get("x-request-id") };
  },

  async stream() {
    const options = { ...greedy, stream: true, stream_options: { include_usage: true } };
    return { chunks: await all(await client.chat.completions.create(options)) };
  },

  async streamHelper() {
    const stream = client.chat.completions.stream({ ...greedy, stream_options: { include_usage: true } });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    return { final: await stream.finalContent(), text, usage: await stream.totalUsage() };
  },

  async abort() {
    const stream = await client.chat.completions.create({ ...greedy, stream: true });
    let seen = 0;
    for await (const _ of stream) if (++seen === 2) break;
    return { seen, aborted: stream.controller.signal.aborted };
  },

  async runTools() {
    const called = [];
    const run = ({ city }) => (called.push(city), `Sunny in ${city}.`);
    const runner = client.chat.completions.runTools({
      ...greedy,
      messages: [{ role: "user", content: "How is the weather in Paris?" }],
      tools: [{ type: "function", function: { ...weather, parse: JSON.parse, function: run } }],
      tool_choice: { type: "function", function: { name: "weather" } },
    });
    await runner.done();
    const roles = runner.messages.map((message) => message.role);
    return { called, roles, result: await runner.finalFunctionToolCallResult() };
  },

  async streamedTools() {
    const stream = client.chat.completions.stream({
      ...greedy,
      tools: [{ type: "function", function: { ...weather, strict: true } }],
      tool_choice: "required",
      parallel_tool_calls: false,
    });
    const completion = await stream.finalChatCompletion();
    return { finish: completion.choices[0].finish_reason, calls: completion.choices[0].message.tool_calls };
  },

  async parse() {
    const completion = await client.chat.completions.parse({
      ...greedy,
      max_completion_tokens: 128,
      messages: [{ role: "user", content: "Describe a fruit." }],
      response_format: zodResponseFormat(Fruit, "fruit"),
    });
    return { parsed: completion.choices[0].message.parsed };
  },

  async completions() {
    const prompt = "The capital of France is";
    const body = { model, prompt, temperature: 0, max_tokens: 4, logprobs: 1 };
    const whole = await client.completions.create(body);
    const chunks = await all(await client.completions.create({ ...body, stream: true }));
    return { whole, text: chunks.map((chunk) => chunk.choices[0]?.text ?? "").join("") };
  },

  async responses() {
    const body = { model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 32 };
    const whole = await client.responses.create(body);
    const events = await all(await client.responses.create({ ...body, stream: true }));
    const parsed = await client.responses.parse({
      ...body,
      max_output_tokens: 128,
      input: "Describe a fruit.",
      text: { format: zodTextFormat(Fruit, "fruit") },
    });
    const kept = await client.responses.retrieve(whole.id);
    await client.responses.delete(whole.id);
    return {
      text: whole.output_text,
      kept: kept.output_text,
      types: events.map((event) => event.type),
      numbers: events.map((event) => event.sequence_number),
      deltas: events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join(""),
      parsed: parsed.output_parsed,
    };
  },

  async embeddings() {
    const body = { model, input: ["one", "two"] };
    const packed = await client.embeddings.create(body);
    const plain = await client.embeddings.create({ ...body, encoding_format: "float" });
    return { packed: packed.data, plain: plain.data, usage: packed.usage };
  },

  async audio() {
    const input = "The quick brown fox jumps over the lazy dog.";
    const speech = await client.audio.speech.create({ model: "tts-1", voice: "alloy", input, response_format: "wav" });
    const bytes = Buffer.from(await speech.arrayBuffer());
    const file = () => toFile(bytes, "fox.wav");
    const heard = await client.audio.transcriptions.create({ model: "whisper-1", file: await file() });
    const srt = await client.audio.transcriptions.create({ model: "whisper-1", file: await file(), response_format: "srt" });
    const events = await all(
      await client.audio.transcriptions.create({ model: "whisper-1", file: await file(), stream: true }),
    );
    return { head: bytes.toString("latin1", 0, 4), size: bytes.length, text: heard.text, srt, last: events.at(-1) };
  },

  async files() {
    const data = Buffer.from("a line\n");
    const made = await client.files.create({ file: await toFile(data, "note.txt"), purpose: "user_data" });
    const listed = await all(client.files.list({ limit: 1 }));
    const content = await (await client.files.content(made.id)).text();
    const deleted = await client.files.delete(made.id);
    const gone = await refusal(() => client.files.retrieve(made.id));
    return { made, listed: listed.some((file) => file.id === made.id), content, deleted, gone };
  },

  async batches() {
    const body = { ...greedy, max_completion_tokens: 4 };
    const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body };
    const file = await client.files.create({ file: await toFile(Buffer.from(JSON.stringify(line)), "in.jsonl"), purpose: "batch" });
    let batch = await client.batches.create({ input_file_id: file.id, endpoint: line.url, completion_window: "24h" });
    for (let wait = 0; wait < 600 && !["completed", "failed", "expired"].includes(batch.status); wait++) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      batch = await client.batches.retrieve(batch.id);
    }
    const rows = await (await client.files.content(batch.output_file_id)).text();
    const listed = await all(client.batches.list());
    return { status: batch.status, row: JSON.parse(rows), listed: listed.some((item) => item.id === batch.id) };
  },

  async errors() {
    return {
      model: await refusal(() => client.chat.completions.create({ ...greedy, model: "gpt-9" })),
      value: await refusal(() => client.chat.completions.create({ ...greedy, temperature: 9 })),
      streamed: await refusal(() => client.chat.completions.create({ ...greedy, temperature: 9, stream: true })),
      voice: await refusal(() => client.audio.speech.create({ model: "tts-1", voice: "nobody", input: "Hi" })),
      audio: await refusal(async () =>
        client.audio.transcriptions.create({ model: "whisper-1", file: await toFile(Buffer.from("no audio"), "a.wav") }),
      ),
      batch: await refusal(() => client.batches.retrieve("batch_none")),
    };
  },

  async retry() {
    const patient = client.withOptions({ maxRetries: 2 });
    const { data, response } = await patient.chat.completions.create({ ...greedy, model: "small" }).withResponse();
    return { text: data.choices[0].message.content, requestId: response.headers.get("x-request-id") };
  },
};

const seen = {};
for (const name of names) {
  try {
    seen[name] = await scenarios[name]();
  } catch (error) {
    seen[name] = { failed: String(error?.stack ?? error) };
  }
}
console.log(JSON.stringify(seen));
