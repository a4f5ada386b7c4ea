// A small, safe subset of Markdown as DOM nodes: text is only ever inserted as text.

import { make } from "./dom.js";

const INLINE = /(`[^`]+`)|(\*\*[^*]+\*\*)|(\*[^*\s][^*]*\*)|(\[[^\]]+\]\(https?:\/\/[^\s)]+\))/;

/** Renders text into nodes. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  const parts = text.split(/^```.*$/m);
  parts.forEach((part, index) => {
    if (index % 2) {
      const block = make("pre");
      block.append(make("code", part.replace(/^\n|\n$/g, "")));
      fragment.append(block);
    } else {
      for (const block of part.split(/\n{2,}/)) addBlock(fragment, block.trim());
    }
  });
  return fragment;
}

function addBlock(parent, text) {
  if (!text) return;
  const lines = text.split("\n");
  const heading = /^#{1,6}\s+(.*)$/.exec(text);
  if (heading && lines.length === 1) {
    const paragraph = make("p");
    paragraph.append(make("strong", heading[1]));
    parent.append(paragraph);
  } else if (lines.every((line) => /^\s*[-*]\s+/.test(line))) {
    parent.append(list("ul", lines, /^\s*[-*]\s+/));
  } else if (lines.every((line) => /^\s*\d+[.)]\s+/.test(line))) {
    parent.append(list("ol", lines, /^\s*\d+[.)]\s+/));
  } else {
    const paragraph = make("p");
    lines.forEach((line, index) => {
      if (index) paragraph.append(make("br"));
      addInline(paragraph, line);
    });
    parent.append(paragraph);
  }
}

function list(tag, lines, marker) {
  const element = make(tag);
  for (const line of lines) {
    const item = make("li");
    addInline(item, line.replace(marker, ""));
    element.append(item);
  }
  return element;
}

function addInline(parent, text) {
  let rest = text;
  for (let match = INLINE.exec(rest); match; match = INLINE.exec(rest)) {
    parent.append(rest.slice(0, match.index), inlineElement(match));
    rest = rest.slice(match.index + match[0].length);
  }
  parent.append(rest);
}

function inlineElement([whole, code, strong, emphasis]) {
  if (code) return make("code", whole.slice(1, -1));
  if (strong) return make("strong", whole.slice(2, -2));
  if (emphasis) return make("em", whole.slice(1, -1));
  const [, label, address] = /^\[([^\]]+)\]\((.+)\)$/.exec(whole);
  const link = make("a", label);
  link.href = address;
  link.rel = "noopener noreferrer";
  link.target = "_blank";
  return link;
}
