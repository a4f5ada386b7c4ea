// Calls of the gateway's REST interface, with its errors as exceptions.

const KEY_NAME = "antiphon-key";

/** An answer of the gateway that is no success. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Remembers an API key for this tab. */
export function useKey(key) {
  sessionStorage.setItem(KEY_NAME, key);
}

/** Calls a path; throws ApiError with the gateway's own words. */
export async function call(path, { json, form, method, signal } = {}) {
  const headers = {};
  const key = sessionStorage.getItem(KEY_NAME);
  if (key) headers.authorization = `Bearer ${key}`;
  if (json) headers["content-type"] = "application/json";
  const body = json ? JSON.stringify(json) : form;
  const response = await fetch(path, {
    method: method ?? (body ? "POST" : "GET"),
    headers,
    body,
    signal,
  });
  if (!response.ok) {
    let message = `${response.status} ${response.statusText}`;
    try {
      message = (await response.json()).error.message;
    } catch {
      // The body was no error object (a proxy's page, say): the status line has to do.
    }
    throw new ApiError(message, response.status);
  }
  return response;
}

/** The parsed `data:` lines of an event stream, until [DONE]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
