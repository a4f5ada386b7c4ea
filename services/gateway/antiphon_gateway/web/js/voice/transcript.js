// The live transcript: one bubble per item.

/** Keeps a list of bubbles in step with the conversation. */
export class Transcript {
  constructor(list, empty) {
    this.list = list;
    this.empty = empty;
    this.bubbles = new Map();
  }

  /** Removes everything. */
  clear() {
    this.list.replaceChildren();
    this.bubbles.clear();
    this.empty.hidden = false;
  }

  /** Adds text to an item's bubble, creating it for the role. */
  append(item, role, text) {
    const bubble = this.#bubble(item, role);
    bubble.firstChild.append(text);
    this.list.scrollTop = this.list.scrollHeight;
  }

  /** Shows a placeholder until the item's text comes. */
  wait(item, role) {
    this.#bubble(item, role).classList.add("pending");
  }

  /** The item is complete; an empty one goes. */
  finish(item) {
    const bubble = this.bubbles.get(item);
    if (!bubble) return;
    bubble.classList.remove("pending");
    if (!bubble.textContent.trim()) {
      bubble.remove();
      this.bubbles.delete(item);
    }
  }

  /** The item was cut off. */
  interrupt(item) {
    const bubble = this.bubbles.get(item);
    if (!bubble || bubble.classList.contains("interrupted")) return;
    bubble.classList.add("interrupted");
    const note = document.createElement("small");
    note.textContent = "interrupted";
    bubble.append(note);
  }

  #bubble(item, role) {
    let bubble = this.bubbles.get(item);
    if (!bubble) {
      bubble = document.createElement("li");
      bubble.className = `bubble ${role}`;
      bubble.append(document.createElement("span"));
      this.bubbles.set(item, bubble);
      this.list.append(bubble);
      this.empty.hidden = true;
    }
    return bubble;
  }
}
