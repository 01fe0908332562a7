/** Saves what is shown as a file. */

import { element } from "./elements.js";

/**
 * Saves a text as a file.
 * @param {string} name
 * @param {string} type
 * @param {string} text
 */
export function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = element("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/**
 * Returns lines of cells as CSV. A cell that a spreadsheet would evaluate is a text there.
 * @param {(string | number)[][]} lines
 * @returns {string}
 */
export function csv(lines) {
  return lines.map((line) => line.map(csvCell).join(",") + "\r\n").join("");
}

/** @param {string | number} cell */
function csvCell(cell) {
  if (typeof cell === "number") return String(cell);
  const text = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
