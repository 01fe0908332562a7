/** One tensor in detail, from every dump on the page: statistics side by side, histogram, neighbours in the graph. */

import { select, tensorAddress } from "../parts/address.js";
import { element, lineColour } from "../parts/elements.js";
import { factsTable } from "../tables/facts_table.js";
import { fileName, save } from "../parts/saving.js";
import { cellText, printable } from "../parts/text.js";

const MOST_NEIGHBOURS = 40;
const BAR_WIDTH = 300;
const BAR_HEIGHT = 110;

export class TensorView {
  /** @param {Content} content */
  constructor(content) {
    this.content = content;
    this.numbers = new Map(content.keys.map((key, number) => [key, number]));
    this.sides = (content.sides ?? []).map((side) => ({ ...side, rows: new Map(side.tensors.keys.map((key, row) => [key, row])) }));
    /** @type {Map<number, number[]>} */
    this.readers = new Map();
    for (const [key, sources] of Object.entries(content.graph?.sources ?? {})) {
      for (const source of sources) this.readers.set(source, [...(this.readers.get(source) ?? []), Number(key)]);
    }
    this.title = element("h2", {});
    this.body = element("div", {});
    const close = element("button", { type: "button", "aria-label": "Close", click: () => select({ tensor: "" }) }, "×");
    this.box = element("aside", { id: "tensor", "aria-label": "One tensor", hidden: true }, element("div", { class: "head" }, this.title, close), this.body);
  }

  /**
   * Shows a tensor, or that the page has none of that key; hides the panel where none is asked for.
   * @param {string} key
   * @param {Element[]} more what else is known of it
   */
  show(key, more) {
    const number = this.numbers.get(key);
    this.box.hidden = key === "";
    this.title.replaceChildren(element("bdi", {}, printable(key)));
    if (number === undefined) {
      this.body.replaceChildren(element("p", { class: "note" }, "No tensor of this name is on the page."));
      return;
    }
    const rows = this.sides.map((side) => {
      const counterpart = side.counterparts?.[number];
      return counterpart === null ? undefined : side.rows.get(counterpart ?? number);
    });
    this.body.replaceChildren(...this.relatives(key), ...this.judgements(number), ...this.source(rows), ...more, ...this.histogram(rows), ...this.statistics(key, rows), ...this.neighbours(number));
    this.box.scrollTop = 0;
  }

  /** Links to the value of a gradient, and to the gradient of a value. @param {string} key */
  relatives(key) {
    const cut = key.indexOf("/");
    const [family, name] = [key.slice(0, cut), key.slice(cut + 1)];
    const others = family.endsWith("_grad") ? [family.slice(0, -5)] : [`${family}_grad`, "update", "clipped_grad"];
    const found = others.map((other) => `${other}/${name}`).filter((other) => this.numbers.has(other));
    const links = found.flatMap((other) => [element("a", { href: tensorAddress(other) }, other.slice(0, other.indexOf("/"))), " "]);
    return links.length === 0 ? [] : [element("p", { class: "note" }, "also: ", ...links)];
  }

  /** Of a comparison: what each candidate's table says of the tensor. @param {number} number */
  judgements(number) {
    if (this.content.kind !== "comparison") return [];
    const found = this.content.sets.flatMap((set) =>
      set.tables.flatMap((table) => {
        const line = table.keys.findIndex((keys) => keys.includes(number));
        return line < 0 ? [] : [{ name: set.name, cells: table.columns.slice(1).map((column, at) => ({ name: column.heading, text: cellText(table.cells[at + 1]?.[line], column.kind) })) }];
      }),
    );
    const names = new Set(found.flatMap((each) => each.cells.filter((cell) => cell.text !== "").map((cell) => cell.name)));
    if (names.size === 0) return [];
    const heads = element("tr", {}, element("td", {}), ...found.map((each) => element("th", { scope: "col" }, printable(each.name))));
    const lines = [...names].map((name) => element("tr", {}, element("th", { scope: "row" }, name), ...found.map((each) => element("td", {}, each.cells.find((cell) => cell.name === name)?.text ?? ""))));
    return [element("h3", {}, "Comparison"), element("div", { class: "wide" }, element("table", { class: "facts" }, element("thead", {}, heads), element("tbody", {}, ...lines)))];
  }

  /** @param {string} key @param {(number | undefined)[]} rows */
  statistics(key, rows) {
    const names = new Map(this.sides.flatMap((side) => side.tensors.columns.map((column) => [column.name, column.kind])));
    const lines = [...names].flatMap(([name, kind]) => {
      const cells = this.sides.map((side, at) => {
        const row = rows[at];
        return row === undefined ? null : (side.tensors.columns.find((column) => column.name === name)?.cells[row] ?? null);
      });
      return cells.every((cell) => cell === null) ? [] : [{ name, texts: cells.map((cell) => cellText(cell, kind)) }];
    });
    if (lines.length === 0) return [];
    return factsTable(key, lines, this.sides.map((side) => side.name), this.sides.length > 1);
  }

  /** The source line with those around it, where the dump has them. @param {(number | undefined)[]} rows */
  source(rows) {
    const [side, row] = [this.sides[0], rows[0]];
    const label = row === undefined ? null : side?.tensors.columns.find((column) => column.name === "source")?.cells[row];
    const found = typeof label === "string" ? this.content.sources?.[label] : undefined;
    if (found === undefined) return [];
    const [first, lines] = found;
    const own = Number(String(label).split(":").at(-1));
    const texts = lines.map((line, at) => element("span", { class: first + at === own ? "own" : "" }, `${String(first + at).padStart(5)}  ${printable(line)}\n`));
    return [element("h3", {}, printable(String(label))), element("pre", { class: "source" }, ...texts)];
  }

  /** Elements by magnitude: bars of one dump, or those of all beside each other. @param {(number | undefined)[]} rows */
  histogram(rows) {
    const found = this.sides.flatMap((side, at) => {
      const row = rows[at];
      const octaves = row === undefined ? null : (side.tensors.octaves[row] ?? null);
      return octaves === null ? [] : [{ name: side.name, at, first: octaves[0] ?? 0, counts: octaves.slice(1) }];
    });
    return magnitudeBars("Elements by magnitude", found);
  }

  /** @param {number} number */
  neighbours(number) {
    const lists = [
      { title: "Computed from", keys: this.content.graph?.sources[number] ?? [] },
      { title: "Used by", keys: this.readers.get(number) ?? [] },
    ];
    return lists.flatMap(({ title, keys }) => {
      if (keys.length === 0) return [];
      const items = keys.slice(0, MOST_NEIGHBOURS).map((key) => element("li", {}, element("a", { href: tensorAddress(this.content.keys[key] ?? "") }, element("bdi", {}, printable(this.content.keys[key] ?? "")))));
      const more = keys.length > MOST_NEIGHBOURS ? [element("li", {}, `${keys.length - MOST_NEIGHBOURS} more`)] : [];
      return [element("h3", {}, title), element("ul", { class: "plain" }, ...items, ...more)];
    });
  }
}

/**
 * Returns bars of elements by magnitude, an octave each: of one histogram, or of several beside each other.
 * @param {string} title
 * @param {{at: number, first: number, counts: number[]}[]} found
 * @returns {Element[]}
 */
export function magnitudeBars(title, found) {
  if (found.length === 0) return [];
  const first = Math.min(...found.map((each) => each.first));
  const last = Math.max(...found.map((each) => each.first + each.counts.length));
  const most = Math.max(...found.flatMap((each) => each.counts), 1);
  const width = BAR_WIDTH / (last - first);
  const bars = found.flatMap((each, order) =>
    each.counts.map((count, octave) => {
      const height = (count / most) * BAR_HEIGHT;
      const x = (each.first + octave - first + order / found.length) * width;
      const bar = shape("rect", { x, y: BAR_HEIGHT - height, width: Math.max(width / found.length - 0.5, 0.5), height, fill: lineColour(each.at) });
      const low = each.first + octave;
      const tip = shape("title", {});
      tip.textContent = `2^${low} .. 2^${low + 1}: ${count.toLocaleString("en-US")}`;
      bar.append(tip);
      return bar;
    }),
  );
  const picture = shape("svg", { viewBox: `0 0 ${BAR_WIDTH} ${BAR_HEIGHT + 16}`, class: "bars", role: "img", "aria-label": "elements by magnitude" });
  const from = shape("text", { x: 0, y: BAR_HEIGHT + 13 });
  from.textContent = `2^${first}`;
  const to = shape("text", { x: BAR_WIDTH, y: BAR_HEIGHT + 13, "text-anchor": "end" });
  to.textContent = `2^${last}`;
  picture.append(...bars, from, to);
  const saved = () => save(`${fileName(title)}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(picture));
  return [element("h3", {}, title), picture, element("button", { type: "button", click: saved }, "SVG")];
}

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 */
function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}
