// Plays what the page posts, and reports when it becomes audible, runs dry or is flushed.

import { PlaybackBuffer } from "../playback.js";
import { Resampler } from "../resampler.js";

class Player extends AudioWorkletProcessor {
  constructor({ processorOptions: { rate, startSeconds } }) {
    super();
    this.rate = rate;
    this.resampler = new Resampler(rate, sampleRate);
    this.buffer = new PlaybackBuffer(sampleRate, startSeconds);
    this.port.onmessage = ({ data }) => this.#obey(data);
  }

  #obey(message) {
    if (message.type === "audio") {
      this.buffer.push(message.item, this.resampler.push(message.samples));
    } else if (message.type === "end") {
      this.buffer.end(message.item);
    } else if (message.type === "flush") {
      this.resampler = new Resampler(this.rate, sampleRate);
      this.port.postMessage({ type: "flushed", ...this.buffer.flush() });
    }
  }

  process(_inputs, [output]) {
    const event = this.buffer.pull(output[0]);
    for (const channel of output.slice(1)) channel.set(output[0]);
    if (event) {
      this.port.postMessage({ type: event, underruns: this.buffer.underruns });
    }
    return true;
  }
}

registerProcessor("player", Player);
