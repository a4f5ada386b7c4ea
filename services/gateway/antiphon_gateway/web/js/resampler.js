// A streaming windowed-sinc resampler: any cut of the input gives the same output.

const LOBES = 12;

/** Converts a stream of mono floats from one sample rate to another. */
export class Resampler {
  constructor(from, to) {
    this.step = from / to;
    // Cutting at the lower of both rates keeps what cannot be represented out of the result.
    this.cutoff = 0.96 * Math.min(1, to / from);
    this.reach = Math.ceil(LOBES / this.cutoff);
    this.held = new Float32Array(this.reach);
    this.position = this.reach;
  }

  /** The output that these further samples make possible. */
  push(samples) {
    if (this.step === 1) return samples;
    const all = new Float32Array(this.held.length + samples.length);
    all.set(this.held);
    all.set(samples, this.held.length);
    const result = [];
    while (this.position + this.reach < all.length) {
      result.push(this.#at(all));
      this.position += this.step;
    }
    const used = Math.max(0, Math.floor(this.position) - this.reach);
    this.held = all.slice(used);
    this.position -= used;
    return Float32Array.from(result);
  }

  #at(all) {
    const center = Math.floor(this.position);
    let sum = 0;
    for (let i = center - this.reach + 1; i <= center + this.reach; i += 1) {
      const distance = i - this.position;
      sum += (all[i] ?? 0) * this.#kernel(distance);
    }
    return sum;
  }

  #kernel(distance) {
    const x = distance * this.cutoff;
    const ratio = distance / this.reach;
    if (Math.abs(ratio) >= 1) return 0;
    const window = Math.cos((ratio * Math.PI) / 2) ** 2;
    const sinc = x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
    return sinc * window * this.cutoff;
  }
}
