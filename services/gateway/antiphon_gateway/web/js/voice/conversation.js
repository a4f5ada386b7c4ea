// A voice conversation: microphone, session, loudspeaker and what the page shows of them.

import { fromBase64 } from "../pcm.js";
import { AudioLink } from "./audio.js";
import { RealtimeSession } from "./session.js";

const LABELS = {
  idle: "Ready when you are",
  connecting: "Connecting",
  listening: "Listening",
  hearing: "Hearing you",
  thinking: "Thinking",
  speaking: "Speaking",
};

/** Runs one conversation at a time; reports through the `view`. */
export class Conversation {
  constructor(view) {
    this.view = view;
    this.phase = "idle";
  }

  /** Starts listening; throws what the microphone or the gateway refused with. */
  async start(session) {
    this.#enter("connecting");
    this.spokenItem = null;
    this.stoppedAt = null;
    this.session = new RealtimeSession({
      onEvent: (event) => this.#hear(event),
      onClose: (code, reason) => this.#lost(code, reason),
    });
    this.link = new AudioLink({
      onPiece: (pcm, loudness) => this.#capture(pcm, loudness),
      onPlayer: (message) => this.#played(message),
    });
    try {
      await this.link.open();
      await this.session.open(session);
    } catch (error) {
      await this.stop();
      throw error;
    }
    this.#enter("listening");
  }

  /** Ends the conversation and frees the microphone. */
  async stop() {
    this.session?.close();
    await this.link?.close();
    this.#enter("idle");
  }

  #enter(phase) {
    this.phase = phase;
    this.view.phase(phase, LABELS[phase]);
  }

  #capture(pcm, loudness) {
    this.session.append(pcm);
    this.view.loudness(loudness);
  }

  #lost(code, reason) {
    this.view.error(`the connection was closed (${code}${reason ? `: ${reason}` : ""})`);
    this.stop();
  }

  #hear(event) {
    const handlers = {
      "input_audio_buffer.speech_started": () => this.#speechStarted(),
      "input_audio_buffer.speech_stopped": () => this.#speechStopped(event),
      "conversation.item.input_audio_transcription.delta": () =>
        this.view.transcript.append(event.item_id, "user", event.delta),
      "conversation.item.input_audio_transcription.completed": () =>
        this.view.transcript.finish(event.item_id),
      "conversation.item.input_audio_transcription.failed": () => {
        this.view.transcript.finish(event.item_id);
        this.view.error(event.error.message);
      },
      "response.output_audio_transcript.delta": () =>
        this.view.transcript.append(event.item_id, "assistant", event.delta),
      "response.output_audio.delta": () => this.#audio(event),
      "response.output_audio.done": () => this.link.end(event.item_id),
      "response.done": () => this.#responseDone(event.response),
      error: () => this.view.error(event.error.message),
    };
    handlers[event.type]?.();
  }

  #speechStarted() {
    this.link.flush();
    this.#enter("hearing");
  }

  #speechStopped(event) {
    this.stoppedAt = performance.now();
    this.firstAudioAt = null;
    this.view.transcript.wait(event.item_id, "user");
    this.#enter("thinking");
  }

  #audio(event) {
    if (this.stoppedAt !== null && this.firstAudioAt === null) {
      this.firstAudioAt = performance.now();
      this.view.first(this.firstAudioAt - this.stoppedAt);
    }
    this.spokenItem = event.item_id;
    this.link.play(event.item_id, fromBase64(event.delta));
  }

  #played(message) {
    if (message.type === "started") {
      this.#enter("speaking");
      if (this.stoppedAt !== null) this.view.audible(performance.now() - this.stoppedAt);
      this.stoppedAt = null;
    } else if (message.type === "flushed") {
      if (message.item && message.unheard) {
        this.session.truncate(message.item, message.playedMs);
        this.view.transcript.interrupt(message.item);
      }
    } else if (message.type === "drained" && this.phase === "speaking") {
      this.#enter("listening");
    }
    if (message.underruns !== undefined) this.view.underruns(message.underruns);
  }

  #responseDone(response) {
    for (const item of response.output) this.view.transcript.finish(item.id);
    if (response.status === "failed") this.view.error(response.status_details.error.message);
    const silent = !response.output.some((item) => item.content?.length);
    if (silent && this.phase === "thinking") this.#enter("listening");
  }
}
