/** Saves what is shown as a file. */

import { element } from "./elements.js";
import { printable } from "./text.js";

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
 * Returns the name of a file for a title.
 * @param {string} title
 * @returns {string}
 */
export function fileName(title) {
  return title.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 80);
}

/**
 * Returns a text as that of an element of SVG.
 * @param {string} text
 * @returns {string}
 */
export function svgText(text) {
  return printable(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/**
 * Returns lines of cells as CSV. A cell that a spreadsheet would evaluate is a text there.
 * @param {(string | number)[][]} lines
 * @returns {string}
 */
export function csv(lines) {
  return lines.map((line) => line.map(csvCell).join(",") + "\r\n").join("");
}

/**
 * Returns a cell as it is saved: a range as both of its ends.
 * @param {Cell | undefined} cell
 * @returns {string | number}
 */
export function plainCell(cell) {
  if (Array.isArray(cell)) return cell.map(plainCell).join("..");
  return typeof cell === "number" ? cell : String(cell ?? "");
}

/** @param {string | number} cell */
function csvCell(cell) {
  if (typeof cell === "number") return String(cell);
  const text = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
