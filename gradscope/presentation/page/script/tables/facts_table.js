/** Facts side by side: a line for each, a column for each dump or run, and what differs in another colour. */

import { element } from "../parts/elements.js";
import { csv, save } from "../parts/saving.js";
import { printable } from "../parts/text.js";

/**
 * Returns a table of facts with a button that saves it; nothing where there is no fact.
 * @param {string} title
 * @param {{name: string, texts: string[]}[]} lines
 * @param {string[]} names of the columns
 * @param {boolean} [named] whether they are shown
 * @returns {HTMLElement[]}
 */
export function factsTable(title, lines, names, named = true) {
  if (lines.length === 0) return [];
  const heads = named ? [element("thead", {}, element("tr", {}, element("td", {}), ...names.map((name) => element("th", { scope: "col" }, printable(name)))))] : [];
  const body = lines.map((line) => element("tr", {}, element("th", { scope: "row" }, line.name), ...line.texts.map((text) => element("td", { class: line.texts.some((other) => other !== text) ? "differs" : "" }, text))));
  const saved = () => save("tensor.csv", "text/csv", csv([[title, ...names], ...lines.map((line) => [line.name, ...line.texts])]));
  return [element("div", { class: "wide" }, element("table", { class: "facts" }, ...heads, element("tbody", {}, ...body))), element("button", { type: "button", click: saved }, "CSV")];
}
