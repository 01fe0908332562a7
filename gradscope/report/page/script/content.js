/** Reads the content of the page: base64 of gzip of the size of the JSON, the JSON, and packed numbers. */

/**
 * Returns the content and the packed numbers.
 * @param {string} encoded
 * @returns {Promise<{content: Content, packed: Uint8Array}>}
 */
export async function readContent(encoded) {
  const bytes = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const whole = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = new DataView(whole.buffer).getUint32(0, true);
  const text = new TextDecoder().decode(whole.subarray(4, 4 + size));
  return { content: JSON.parse(text), packed: whole.subarray(4 + size) };
}

const MISSING = 32767;
const INFINITE = 32766;
const LOWEST_EXPONENT = -160;

/**
 * Returns packed statistics: by row and step, as `gradscope.report.page.packed_series` writes them.
 * @param {Uint8Array} packed two planes of bytes, the low and the high ones of differences between steps
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
  const high = rows * steps;
  for (let row = 0; row < rows; row++) {
    let code = 0;
    for (let step = 0; step < steps; step++) {
      const at = row * steps + step;
      code = ((code + (packed[at] ?? 0) + ((packed[high + at] ?? 0) << 8)) << 16) >> 16;
      values[at] = code < 0 ? -(powers[-code] ?? NaN) : (powers[code] ?? NaN);
    }
  }
  return values;
}
