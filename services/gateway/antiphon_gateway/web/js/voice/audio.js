// Microphone and loudspeaker of a voice conversation.

export const RATE = 24000;
const PIECE_SECONDS = 0.04;
const START_SECONDS = 0.1;

/** Opens both ends. `onPiece(buffer, loudness)` gets the microphone, `onPlayer(message)` reports. */
export class AudioLink {
  constructor({ onPiece, onPlayer }) {
    this.onPiece = onPiece;
    this.onPlayer = onPlayer;
  }

  /** Asks for the microphone; throws when it is refused. */
  async open() {
    if (!navigator.mediaDevices) {
      throw new Error("Browsers give the microphone to https and localhost pages only.");
    }
    this.stream = await navigator.mediaDevices.getUserMedia({
      audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true },
    });
    this.context = new AudioContext({ latencyHint: "interactive" });
    await this.context.audioWorklet.addModule("/js/worklets/capture.js");
    await this.context.audioWorklet.addModule("/js/worklets/player.js");
    await this.context.resume();
    this.capture = new AudioWorkletNode(this.context, "capture", {
      numberOfOutputs: 0,
      channelCount: 1,
      channelCountMode: "explicit",
      processorOptions: { rate: RATE, pieceSeconds: PIECE_SECONDS },
    });
    this.capture.port.onmessage = ({ data }) => this.onPiece(data.pcm, data.loudness);
    this.player = new AudioWorkletNode(this.context, "player", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: { rate: RATE, startSeconds: START_SECONDS },
    });
    this.player.port.onmessage = ({ data }) => this.onPlayer(data);
    this.player.connect(this.context.destination);
    this.context.createMediaStreamSource(this.stream).connect(this.capture);
  }

  /** Queues samples of an item. */
  play(item, samples) {
    this.player.port.postMessage({ type: "audio", item, samples }, [samples.buffer]);
  }

  /** Tells that an item is complete. */
  end(item) {
    this.player.port.postMessage({ type: "end", item });
  }

  /** Silences at once; a "flushed" report follows. */
  flush() {
    this.player?.port.postMessage({ type: "flush" });
  }

  /** Frees microphone and audio hardware. */
  async close() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.capture?.port.close();
    this.player?.port.close();
    if (this.context && this.context.state !== "closed") await this.context.close();
  }
}
