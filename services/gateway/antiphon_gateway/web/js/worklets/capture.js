// Microphone to 16-bit pieces at the wire's rate.

import { toInt16 } from "../pcm.js";
import { Resampler } from "../resampler.js";

class Capture extends AudioWorkletProcessor {
  constructor({ processorOptions: { rate, pieceSeconds } }) {
    super();
    this.resampler = new Resampler(sampleRate, rate);
    this.piece = new Float32Array(Math.round(rate * pieceSeconds));
    this.filled = 0;
  }

  process([input]) {
    if (input.length === 0) return true;
    for (const sample of this.resampler.push(input[0])) {
      this.piece[this.filled] = sample;
      this.filled += 1;
      if (this.filled === this.piece.length) this.#send();
    }
    return true;
  }

  #send() {
    const power = this.piece.reduce((sum, sample) => sum + sample * sample, 0);
    const samples = toInt16(this.piece);
    const loudness = Math.sqrt(power / this.piece.length);
    this.port.postMessage({ pcm: samples.buffer, loudness }, [samples.buffer]);
    this.filled = 0;
  }
}

registerProcessor("capture", Capture);
