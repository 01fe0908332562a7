/** Reads the content of the page: base64 of gzip of the JSON, packed numbers, and the size of the JSON. */

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
  const unzipped = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = new DataView(unzipped.buffer).getUint32(unzipped.length - 4, true);
  const text = new TextDecoder().decode(unzipped.subarray(0, size));
  return { content: JSON.parse(text), packed: unzipped.subarray(size, -4) };
}

const MISSING = 400_001;
const INFINITE = 400_000;
const LOWEST_EXPONENT = -160;
/** @type {Map<number, Float32Array>} the magnitude of each code, by the parts of an octave */
const magnitudes = new Map();

/** @param {number} parts */
function magnitudesOf(parts) {
  const known = magnitudes.get(parts);
  if (known !== undefined) return known;
  const made = new Float32Array(MISSING + 1);
  for (let code = 1; code < INFINITE; code++) made[code] = 2 ** ((code - 1) / parts + LOWEST_EXPONENT);
  made[INFINITE] = Infinity;
  made[MISSING] = NaN;
  magnitudes.set(parts, made);
  return made;
}

/** The bytes of packed statistics. @param {number} rows @param {number} steps */
export function packedBytes(rows, steps) {
  return 1 + 3 * rows * steps;
}

/**
 * Returns packed statistics: by row and step, as `gradscope.presentation.page.content.packed_series` writes them.
 * @param {Uint8Array} packed whether they are differences between steps, then planes of the low, middle and high bytes
 * @param {number} rows
 * @param {number} steps
 * @param {number} parts the parts of an octave
 * @returns {Float32Array}
 */
export function unpacked(packed, rows, steps, parts) {
  const values = new Float32Array(rows * steps);
  const sizes = magnitudesOf(parts);
  const [differences, plane] = [packed[0] === 1, rows * steps];
  for (let row = 0; row < rows; row++) {
    let code = 0;
    for (let at = row * steps; at < (row + 1) * steps; at++) {
      const read = (packed[1 + at] ?? 0) | ((packed[1 + plane + at] ?? 0) << 8) | ((packed[1 + 2 * plane + at] ?? 0) << 16);
      code = differences ? code + ((read >>> 1) ^ -(read & 1)) : read;
      const size = sizes[code >>> 1] ?? NaN;
      values[at] = code & 1 ? -size : size;
    }
  }
  return values;
}
