/** Reads the content of the page: base64 of gzip of the size of the JSON, the JSON, and packed numbers. */

/**
 * Returns the content and the packed numbers.
 * @param {string} encoded
 * @returns {Promise<{content: Content, packed: Uint8Array}>}
 */
export async function readContent(encoded) {
  const characters = atob(encoded);
  const bytes = new Uint8Array(characters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = characters.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const whole = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = new DataView(whole.buffer).getUint32(0, true);
  const text = new TextDecoder().decode(whole.subarray(4, 4 + size));
  return { content: JSON.parse(text), packed: whole.subarray(4 + size) };
}

const MISSING = 400_001;
const INFINITE = 400_000;
const BITS_BEYOND = 8;
const LOWEST_EXPONENT = -160;

/**
 * Returns packed statistics: by row and step, as `gradscope.report.page.packed_series` writes them.
 * @param {Uint8Array} packed planes of the low, middle and high bytes of differences between steps
 * @param {number} rows
 * @param {number} steps
 * @param {number} parts the parts of an octave
 * @returns {Float32Array}
 */
export function unpacked(packed, rows, steps, parts) {
  const values = new Float32Array(rows * steps);
  const powers = new Float32Array(MISSING + 1);
  for (let code = 1; code < INFINITE; code++) powers[code] = 2 ** ((code - 1) / parts + LOWEST_EXPONENT);
  powers[INFINITE] = Infinity;
  powers[MISSING] = NaN;
  const plane = rows * steps;
  for (let row = 0; row < rows; row++) {
    let code = 0;
    for (let step = 0; step < steps; step++) {
      const at = row * steps + step;
      const change = (packed[at] ?? 0) | ((packed[plane + at] ?? 0) << 8) | ((packed[2 * plane + at] ?? 0) << 16);
      code = ((code + change) << BITS_BEYOND) >> BITS_BEYOND;
      values[at] = code < 0 ? -(powers[-code] ?? NaN) : (powers[code] ?? NaN);
    }
  }
  return values;
}
