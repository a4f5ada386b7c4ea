// The playback buffer, free of audio nodes: items of samples in, blocks out, positions kept.

const GROWTH_SECONDS = 0.05;
const LONGEST_DELAY_SECONDS = 0.4;

/** Plays items in order; starts after a delay that grows with every underrun. */
export class PlaybackBuffer {
  constructor(rate, startSeconds) {
    this.rate = rate;
    this.delay = startSeconds;
    this.queue = [];
    this.offset = 0;
    this.buffered = 0;
    this.playing = false;
    this.item = null;
    this.played = 0;
    this.ended = true;
    this.underruns = 0;
  }

  /** Adds samples of an item; another item than the last starts a new count. */
  push(item, samples) {
    if (this.item !== item) {
      this.item = item;
      this.played = 0;
    }
    this.ended = false;
    this.queue.push(samples);
    this.buffered += samples.length;
  }

  /** No more of this item follows: what is left plays at once. */
  end(item) {
    if (item === this.item) this.ended = true;
  }

  /** Drops everything and tells how much of which item was played. */
  flush() {
    const item = this.item;
    const unheard = this.buffered > 0 || !this.ended;
    const position = { item, playedMs: Math.floor((this.played * 1000) / this.rate), unheard };
    this.queue = [];
    this.offset = 0;
    this.buffered = 0;
    this.playing = false;
    this.ended = true;
    this.item = null;
    return position;
  }

  /** Fills a block; returns "started", "underrun", "drained" or null. */
  pull(block) {
    block.fill(0);
    let event = null;
    if (!this.playing) {
      const enough = this.buffered >= this.delay * this.rate || (this.ended && this.buffered > 0);
      if (!enough) return null;
      this.playing = true;
      event = "started";
    }
    let filled = 0;
    while (filled < block.length && this.queue.length > 0) {
      const head = this.queue[0];
      const count = Math.min(block.length - filled, head.length - this.offset);
      block.set(head.subarray(this.offset, this.offset + count), filled);
      filled += count;
      this.offset += count;
      if (this.offset === head.length) {
        this.queue.shift();
        this.offset = 0;
      }
    }
    this.buffered -= filled;
    this.played += filled;
    if (filled === block.length) return event;
    this.playing = false;
    if (this.ended) return "drained";
    this.underruns += 1;
    this.delay = Math.min(LONGEST_DELAY_SECONDS, this.delay + GROWTH_SECONDS);
    return "underrun";
  }
}
