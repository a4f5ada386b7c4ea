// Conversions between what the wire carries (base64 of 16-bit samples) and what audio nodes use.

const STEP = 0x8000;

/** Base64 of the bytes of a buffer. */
export function toBase64(buffer) {
  const bytes = new Uint8Array(buffer);
  let text = "";
  for (let start = 0; start < bytes.length; start += STEP) {
    text += String.fromCharCode(...bytes.subarray(start, start + STEP));
  }
  return btoa(text);
}

/** 16-bit little-endian samples of base64 text, as floats in [-1, 1). */
export function fromBase64(text) {
  const raw = atob(text);
  const samples = new Float32Array(raw.length >> 1);
  for (let i = 0; i < samples.length; i += 1) {
    const value = raw.charCodeAt(2 * i) | (raw.charCodeAt(2 * i + 1) << 8);
    samples[i] = (value >= STEP ? value - 2 * STEP : value) / STEP;
  }
  return samples;
}

/** Floats as 16-bit samples, limited to the range. */
export function toInt16(samples) {
  const result = new Int16Array(samples.length);
  for (let i = 0; i < samples.length; i += 1) {
    result[i] = Math.max(-STEP, Math.min(STEP - 1, Math.round(samples[i] * STEP)));
  }
  return result;
}
