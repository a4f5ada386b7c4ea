// The realtime protocol as seen from a browser.

import { call } from "../api.js";
import { toBase64 } from "../pcm.js";

/** One realtime session: send methods, and every server event to `onEvent`. */
export class RealtimeSession {
  constructor({ onEvent, onClose }) {
    this.onEvent = onEvent;
    this.onClose = onClose;
  }

  /** Connects with an ephemeral secret; resolves once the session is created. */
  async open(session) {
    const secret = await (
      await call("/v1/realtime/client_secrets", { json: { session } })
    ).json();
    const address = new URL("/v1/realtime", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    this.socket = new WebSocket(address, [
      "realtime",
      `openai-insecure-api-key.${secret.value}`,
    ]);
    this.socket.onmessage = ({ data }) => this.onEvent(JSON.parse(data));
    await new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onclose = () => reject(new Error("the gateway refused the connection"));
    });
    this.socket.onclose = ({ code, reason }) => this.onClose(code, reason);
  }

  /** Sends one client event, if the socket is open. */
  send(type, fields = {}) {
    if (this.socket?.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify({ type, ...fields }));
    }
  }

  /** Appends microphone audio. */
  append(buffer) {
    this.send("input_audio_buffer.append", { audio: toBase64(buffer) });
  }

  /** Tells how much of a spoken item was heard. */
  truncate(item, playedMs) {
    this.send("conversation.item.truncate", {
      item_id: item,
      content_index: 0,
      audio_end_ms: playedMs,
    });
  }

  /** Leaves. */
  close() {
    if (this.socket) {
      this.socket.onclose = null;
      this.socket.close(1000);
    }
  }
}
