/** Texts and numbers as people read them: the rules of `gradscope.presentation.tables.numbers`. */

const UNSAFE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const LONGEST_SHOWN = 300;

/**
 * Returns a text with control characters and bidirectional marks as escapes, without its middle where it is long.
 * @param {string} text
 * @returns {string}
 */
export function printable(text) {
  const half = LONGEST_SHOWN / 2;
  const short = text.length <= LONGEST_SHOWN ? text : `${text.slice(0, half)}…${text.slice(-half)}`;
  return short.replace(UNSAFE, (character) => {
    const code = character.codePointAt(0) ?? 0;
    return code <= 0xff ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/**
 * Returns a value as a number; what JSON has as words, too. NaN for no number.
 * @param {Cell | undefined} value
 * @returns {number}
 */
export function numeric(value) {
  if (typeof value === "number") return value;
  if (Array.isArray(value)) return numeric(value[1]);
  if (value === "Infinity") return Infinity;
  return value === "-Infinity" ? -Infinity : NaN;
}

/**
 * Returns a number with three significant digits; an integer with all of its digits.
 * @param {number} value
 * @returns {string}
 */
export function numberText(value) {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size < 1e-3 || size >= 9999.5) {
    const [digits, power] = value.toExponential(2).split("e");
    const exponent = Number(power);
    return `${digits}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  return size >= 999.5 ? value.toFixed(0) : value.toPrecision(3);
}

/**
 * Returns a share in percent; nearly nothing and nearly all are shown as such.
 * @param {number} value
 * @returns {string}
 */
export function shareText(value) {
  if (value > 0 && value < 0.001) return "<0.1%";
  if (value > 0.999 && value < 1) return ">99.9%";
  return value === 0 || value === 1 ? `${value * 100}%` : `${(value * 100).toFixed(1)}%`;
}

/**
 * Returns a cell as text.
 * @param {Cell | undefined} cell
 * @param {string} kind the kind of its column
 * @returns {string}
 */
export function cellText(cell, kind) {
  if (cell === null || cell === undefined) return "";
  if (Array.isArray(cell)) {
    const ends = [...new Set(cell.map((end) => cellText(end, kind)))];
    return ends.join("..");
  }
  if (typeof cell === "boolean") return cell ? "yes" : "no";
  if (!isNumeric(kind)) return printable(String(cell));
  const value = numeric(cell);
  if (kind === "share") return Number.isNaN(value) ? "nan" : shareText(value);
  return kind === "count" || kind === "size" || kind === "amount" ? value.toLocaleString("en-US") : numberText(value);
}

/**
 * Returns whether a column of some kind has numbers.
 * @param {string} kind
 * @returns {boolean}
 */
export function isNumeric(kind) {
  return ["number", "share", "count", "size", "amount"].includes(kind);
}

/**
 * Returns whether a text is what a search field asks for: a glob of a complete name where it has `*` or `?`,
 * otherwise words that all have to occur.
 * @param {string} query
 * @returns {(text: string) => boolean}
 */
export function matcher(query) {
  const words = query.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) => {
    if (!/[*?]/.test(word)) return (/** @type {string} */ text) => text.includes(word);
    const pattern = word.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*+/g, ".*").replace(/\?/g, ".");
    const glob = new RegExp(`^(?:[^/]*/)?${pattern}$`, "s");
    return (/** @type {string} */ text) => glob.test(text);
  });
  return (text) => tests.every((test) => test(text.toLowerCase()));
}
