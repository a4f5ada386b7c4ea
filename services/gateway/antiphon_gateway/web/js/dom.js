// Small helpers for elements.

/** The element with an id; throws where the page has none. */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element #${id}`);
  return element;
}

/** A new element with text. */
export function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (className) element.className = className;
  return element;
}

/** Shows or hides an error paragraph. */
export function showError(element, message) {
  element.textContent = message;
  element.hidden = !message;
}
