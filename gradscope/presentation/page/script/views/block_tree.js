/** The tree of layers: blocks open on demand, coloured by a column, each with the siblings whose values it reads. */

import { select, selected, tensorAddress } from "../parts/address.js";
import { choice, element, section } from "../parts/elements.js";
import { ramp } from "../charts/heat_map.js";
import { csv, plainCell, save } from "../parts/saving.js";
import { cellText, matcher, numeric, printable } from "../parts/text.js";

/** The most parts of a block that are shown at once; the others follow on demand. */
const MOST_PARTS = 200;
/** The most blocks that a search opens. */
const MOST_FOUND = 200;

export class BlockTree {
  /** @param {BlocksContent} blocks @param {string[]} keys @param {string} [when] */
  constructor(blocks, keys, when = "") {
    this.blocks = blocks;
    this.keys = keys;
    /** @type {number[][]} */
    this.parts = blocks.names.map(() => []);
    /** @type {number[]} */
    this.top = [];
    blocks.parents.forEach((parent, at) => (parent < 0 ? this.top : (this.parts[parent] ?? [])).push(at));
    this.column = Math.max(...["rel_l2", "gradient rms"].map((name) => blocks.columns.findIndex((column) => column.name === name)).filter((at) => at >= 0).slice(0, 1), 0);
    const names = blocks.columns.map((column) => column.name);
    const { box, list } = choice("coloured by", names, (name) => select({ colour: name }, { quiet: true }));
    this.choice = list;
    this.usual = this.column;
    this.list = element("ul", { class: "tree" });
    this.box = section("tree", `Layers as a tree${when}`, box, element("button", { type: "button", click: () => this.saveCsv() }, "CSV"));
    this.box.append(this.list);
    this.query = "";
    /** @type {Set<number>} */
    this.open = new Set(this.top.length === 1 ? this.top : []);
    this.followColour();
  }

  /** Follows the address: the column by which blocks are coloured. */
  followColour() {
    const requested = this.blocks.columns.findIndex((column) => column.name === selected("colour"));
    this.column = requested < 0 ? this.usual : requested;
    this.choice.selectedIndex = this.column;
    this.draw();
  }

  /** @param {string} query */
  filter(query) {
    if (query === this.query) return;
    this.query = query;
    this.draw();
  }

  draw() {
    const sizes = (this.blocks.columns[this.column]?.cells ?? []).map((cell) => (cell === null ? NaN : Math.abs(numeric(cell))));
    const known = sizes.filter((size) => size > 0 && Number.isFinite(size));
    this.low = known.reduce((low, size) => Math.min(low, size), Infinity);
    this.high = known.reduce((high, size) => Math.max(high, size), 0);
    const shown = this.query === "" ? this.top : this.found();
    this.list.replaceChildren(...this.items(shown));
  }

  found() {
    const matches = matcher(this.query);
    const found = [];
    for (let at = 0; at < this.blocks.names.length && found.length < MOST_FOUND; at++) if (matches(this.path(at))) found.push(at);
    return found;
  }

  /** @param {number} at */
  path(at) {
    const names = [];
    for (let block = at; block >= 0; block = this.blocks.parents[block] ?? -1) names.unshift(this.blocks.names[block]);
    return names.join("/");
  }

  /** @param {number[]} blocks @param {number} [from] @returns {HTMLElement[]} */
  items(blocks, from = 0) {
    const items = blocks.slice(from, from + MOST_PARTS).map((at) => this.item(at));
    const left = blocks.length - from - MOST_PARTS;
    if (left > 0) {
      const more = element("li", {});
      more.append(element("button", { type: "button", click: () => more.replaceWith(...this.items(blocks, from + MOST_PARTS)) }, `${left.toLocaleString("en-US")} more`));
      items.push(more);
    }
    return items;
  }

  /** @param {number} at */
  item(at) {
    const parts = this.parts[at] ?? [];
    if (parts.length === 0) return element("li", { class: "leaf" }, this.line(at));
    const list = element("ul", {});
    const details = element("details", {}, element("summary", {}, this.line(at)), list);
    const fill = () => {
      if (list.childElementCount === 0) list.append(...this.items(parts));
    };
    if (this.open.has(at)) {
      details.open = true;
      fill();
    }
    details.addEventListener("toggle", () => {
      if (details.open) {
        this.open.add(at);
        fill();
      } else this.open.delete(at);
    });
    return element("li", {}, details);
  }

  /** @param {number} at */
  line(at) {
    const column = this.blocks.columns[this.column];
    const cell = column?.cells[at] ?? null;
    const text = cellText(cell, column?.kind ?? "");
    const chip = element("span", { class: "chip" });
    const size = cell === null ? NaN : Math.abs(numeric(cell));
    if (Number.isFinite(size)) chip.style.backgroundColor = `rgb(${ramp(this.shade(size)).join(" ")})`;
    const name = element("bdi", {}, printable(this.query === "" ? (this.blocks.names[at] ?? "") : this.path(at)));
    const key = this.blocks.keys[at]?.[0];
    const link = key === undefined ? name : element("a", { href: tensorAddress(this.keys[key] ?? "") }, name);
    const words = this.blocks.words[at] ?? "";
    const read = (this.blocks.flow[at] ?? []).map((from) => printable(this.blocks.names[from] ?? ""));
    const flow = read.length === 0 ? "" : `← ${read.slice(0, 4).join(", ")}${read.length > 4 ? `, ${read.length - 4} more` : ""}`;
    return element(
      "span",
      { class: "block" },
      chip,
      link,
      element("span", { class: "value" }, text),
      ...(words === "" ? [] : [element("span", { class: "words found" }, words)]),
      element("span", { class: "flow", title: flow === "" ? "" : "reads the values of these siblings" }, flow),
    );
  }

  saveCsv() {
    const { names, columns, words } = this.blocks;
    const lines = names.map((_, at) => [this.path(at), words[at] ?? "", ...columns.map((column) => plainCell(column.cells[at]))]);
    save("layers.csv", "text/csv", csv([["block", "findings", ...columns.map((column) => column.name)], ...lines]));
  }

  /** @param {number} size */
  shade(size) {
    const [low, high] = [this.low ?? 1, this.high ?? 1];
    if (size === 0 || !(high > low)) return 0;
    return Math.log(size / low) / Math.log(high / low);
  }
}
