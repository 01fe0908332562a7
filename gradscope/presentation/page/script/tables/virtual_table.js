/** A table of any length: only the rows in sight are elements. It is sorted, filtered, and shows chosen columns. */

import { select, selected, tensorAddress } from "../parts/address.js";
import { element } from "../parts/elements.js";
import { csv, plainCell, save } from "../parts/saving.js";
import { cellText, isNumeric, matcher, numeric, printable } from "../parts/text.js";

const ROW_PIXELS = 26;
const ROWS_BEYOND = 12;
const ROWS_IN_SIGHT = 18;
/** The most rows of a table that are printed. */
const MOST_PRINTED = 300;
/** Columns that a table does not show at first: those that a terminal drops first. */
const LESS_IMPORTANT = 8;
const SAMPLED = 400;
const WIDEST_NAME = 60;

export class VirtualTable {
  /**
   * @param {TableContent} table
   * @param {string[]} keys
   */
  constructor(table, keys) {
    this.table = table;
    this.keys = keys;
    /** @type {boolean[]} */
    this.usual = table.columns.map((column, at) => at === 0 || column.priority < LESS_IMPORTANT);
    this.shown = this.wantedColumns();
    /** @type {number[]} the width of each column, which grows, so that nothing jumps from step to step */
    this.widths = table.columns.map(() => 0);
    this.order = this.wantedOrder();
    this.query = "";
    this.printed = false;
    this.lines = table.keys.map((_, at) => at);
    this.texts = table.keys.map((line, at) => this.searched(line, at));
    this.title = element("strong", {}, printable(table.title));
    this.count = element("output", {});
    /** @type {HTMLInputElement[]} those that choose the columns after the first */
    this.boxes = [];
    this.body = element("tbody");
    this.heads = element("thead");
    this.columns = element("colgroup");
    this.grid = element("table", { class: "virtual", "aria-rowcount": this.lines.length }, this.columns, this.heads, this.body);
    this.scroller = element("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": table.title }, this.grid);
    this.scroller.addEventListener("scroll", () => this.drawRows());
    this.scroller.addEventListener("keydown", (event) => this.moved(event));
    this.box = element("div", { class: "table-box" }, this.controls(), this.scroller, ...table.notes.map((note) => element("p", { class: "note" }, printable(note))));
    this.drawHeads();
    this.arrange();
  }

  /** @param {number[]} line @param {number} at */
  searched(line, at) {
    return [String(this.table.cells[0]?.[at] ?? ""), ...line.map((key) => this.keys[key] ?? "")];
  }

  controls() {
    const boxes = this.table.columns.slice(1).map((column, before) => {
      const box = element("input", { type: "checkbox", change: () => this.choose(before + 1, box.checked) });
      this.boxes.push(box);
      return element("label", {}, box, ` ${this.heading(before + 1)}`);
    });
    return element(
      "div",
      { class: "controls" },
      this.title,
      this.count,
      element("details", { class: "menu" }, element("summary", {}, "Columns"), element("div", {}, ...boxes)),
      element("button", { type: "button", click: () => this.saveCsv() }, "CSV"),
    );
  }

  /** @param {number} at */
  heading(at) {
    const column = this.table.columns[at];
    return column === undefined ? "" : `${column.group} ${column.heading}`.trim();
  }

  /** @param {number} column @param {boolean} shown */
  choose(column, shown) {
    const requested = this.shown.map((each, at) => (at === column ? shown : each));
    const others = requested.flatMap((each, at) => (each === this.usual[at] ? [] : [this.heading(at)]));
    select({ [this.partName("columns")]: others.join(",") }, { quiet: true });
  }

  /** The columns in the address, which has those that are not as usual. @returns {boolean[]} */
  wantedColumns() {
    const others = selected(this.partName("columns")).split(",");
    return this.usual.map((usual, at) => (at > 0 && others.includes(this.heading(at)) ? !usual : usual));
  }

  /**
   * Replaces the cells, such as by those of another step.
   * @param {Cell[][]} cells
   */
  replaceCells(cells) {
    this.table = { ...this.table, cells };
    this.drawHeads();
    this.arrange();
  }

  /** @param {string} title */
  rename(title) {
    this.table = { ...this.table, title };
    this.title.textContent = printable(title);
  }

  /** @param {string} query */
  filter(query) {
    if (query === this.query) return;
    this.query = query;
    this.scroller.scrollTop = 0;
    this.arrange();
  }

  /** Draws the rows that are printed, or those in sight again. @param {boolean} printed */
  print(printed) {
    this.printed = printed;
    this.drawRows();
  }

  /** @param {number} column */
  sort(column) {
    const again = this.order?.column === column;
    const down = again ? (this.order?.down ? "+" : "") : "-";
    select({ [this.partName("sort")]: down === "" ? "" : `${down}${this.heading(column)}` }, { quiet: true });
  }

  /** The part of the address that has its order, or its columns. @param {"sort" | "columns"} what */
  partName(what) {
    return `${what}.${this.table.title.split(/ \(|,/)[0]}`;
  }

  /** The order in the address. @returns {{column: number, down: boolean} | null} */
  wantedOrder() {
    const requested = selected(this.partName("sort"));
    const column = this.table.columns.findIndex((_, at) => this.heading(at) === requested.slice(1));
    return requested === "" || column < 0 ? null : { column, down: requested.startsWith("-") };
  }

  /** Follows the address. */
  followAddress() {
    this.shown = this.wantedColumns();
    this.order = this.wantedOrder();
    this.drawHeads();
    this.arrange();
  }

  arrange() {
    const found = matcher(this.query);
    this.lines = this.table.keys.map((_, at) => at).filter((at) => this.texts[at]?.some(found));
    if (this.order !== null) {
      const { column, down } = this.order;
      const cells = this.table.cells[column] ?? [];
      const numbers = isNumeric(this.table.columns[column]?.kind ?? "");
      const sign = down ? -1 : 1;
      this.lines.sort((one, other) => compared(cells[one], cells[other], numbers, sign) || one - other);
    }
    this.grid.setAttribute("aria-rowcount", String(this.lines.length));
    const all = this.table.keys.length;
    this.count.textContent = this.lines.length === all ? "" : `${this.lines.length.toLocaleString("en-US")} of ${all.toLocaleString("en-US")}`;
    this.drawRows();
  }

  drawHeads() {
    const { columns } = this.table;
    this.boxes.forEach((box, before) => {
      box.checked = this.shown[before + 1] ?? false;
    });
    this.widths = columns.map((_, at) => Math.max(this.widths[at] ?? 0, this.shown[at] ? this.width(at) : 0));
    const visible = columns.map((_, at) => at).filter((at) => this.shown[at]);
    this.columns.replaceChildren(
      ...visible.map((at) => {
        const made = element("col");
        made.style.width = this.wide([at]);
        return made;
      }),
    );
    this.grid.style.width = this.wide(visible);
    const groups = element("tr");
    for (const at of visible) {
      const group = columns[at]?.group ?? "";
      const last = groups.lastElementChild;
      if (last instanceof HTMLTableCellElement && last.textContent === group) last.colSpan += 1;
      else groups.append(element("th", { class: "group", scope: "colgroup" }, group));
    }
    const heads = visible.map((at) => {
      const column = columns[at];
      const order = this.order?.column === at ? (this.order.down ? "descending" : "ascending") : "none";
      const button = element("button", { type: "button", title: column?.about ?? "", click: () => this.sort(at) }, `${column?.heading ?? ""}${{ none: "", ascending: " ▲", descending: " ▼" }[order]}`);
      return element("th", { scope: "col", "aria-sort": order, class: isNumeric(column?.kind ?? "") ? "number" : "text" }, button);
    });
    const grouped = columns.some((column) => column.group !== "");
    this.heads.replaceChildren(...(grouped ? [groups] : []), element("tr", {}, ...heads));
  }

  /** The width of columns as CSS; names leave half of a narrow window to the numbers. @param {number[]} columns */
  wide(columns) {
    return `calc(${columns.map((at) => (at === 0 ? `min(${this.widths[at]}ch, 50vw)` : `${this.widths[at]}ch`)).join(" + ")})`;
  }

  /** @param {number} at */
  width(at) {
    const column = this.table.columns[at];
    const cells = this.table.cells[at] ?? [];
    const step = Math.max(1, Math.floor(cells.length / SAMPLED));
    const beside = this.table.columns.filter((other, number) => this.shown[number] && other.group === column?.group).length;
    let longest = Math.max((column?.heading.length ?? 0) + 3, Math.ceil((column?.group ? column.group.length + 2 : 0) / Math.max(beside, 1)));
    for (let line = 0; line < cells.length; line += step) longest = Math.max(longest, cellText(cells[line], column?.kind ?? "").length);
    return Math.min(longest, WIDEST_NAME) + 2;
  }

  drawRows() {
    const first = this.printed ? 0 : Math.max(0, Math.floor(this.scroller.scrollTop / ROW_PIXELS) - ROWS_BEYOND);
    const last = Math.min(this.lines.length, this.printed ? MOST_PRINTED : first + ROWS_IN_SIGHT + 2 * ROWS_BEYOND);
    const focused = document.activeElement?.getAttribute("data-line");
    const rows = this.lines.slice(first, last).map((line, at) => this.row(line, first + at));
    const left = this.lines.length - last;
    const more = element("tr", {}, element("td", { colspan: this.shown.length }, `and ${left.toLocaleString("en-US")} more`));
    this.body.replaceChildren(spacer(first), ...rows, ...(left > 0 && this.printed ? [more] : [spacer(left)]));
    if (focused !== null && focused !== undefined) this.link(focused)?.focus({ preventScroll: true });
  }

  /** @param {number} line @param {number} at */
  row(line, at) {
    const cells = this.table.columns.flatMap((column, number) => {
      if (!this.shown[number]) return [];
      const text = cellText(this.table.cells[number]?.[line], column.kind);
      if (number === 0) return [element("th", { scope: "row", title: text }, this.name(line, text))];
      const kind = column.kind === "words" && text !== "" ? `words ${text.includes("same") ? "good" : "found"}` : isNumeric(column.kind) ? "number" : "text";
      return [element("td", { class: kind, title: column.kind === "text" ? text : "" }, text)];
    });
    const chosen = selected("tensor");
    const own = chosen !== "" && (this.table.keys[line] ?? []).some((key) => this.keys[key] === chosen);
    return element("tr", { "aria-rowindex": at + 1, "aria-selected": own, class: own ? "chosen" : "" }, ...cells);
  }

  /** @param {number} line @param {string} text */
  name(line, text) {
    const key = this.table.keys[line]?.[0];
    const shown = element("bdi", {}, text);
    if (key === undefined) return shown;
    return element("a", { href: tensorAddress(this.keys[key] ?? ""), "data-line": line }, shown);
  }

  /** @param {string} line */
  link(line) {
    const found = this.body.querySelector(`a[data-line="${line}"]`);
    return found instanceof HTMLAnchorElement ? found : null;
  }

  /** @param {KeyboardEvent} event */
  moved(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const line = document.activeElement?.getAttribute("data-line");
    if (by === undefined || line === null || line === undefined) return;
    event.preventDefault();
    const at = this.lines.indexOf(Number(line)) + by;
    const next = this.lines[at];
    if (next === undefined) return;
    if (at * ROW_PIXELS < this.scroller.scrollTop) this.scroller.scrollTop = at * ROW_PIXELS;
    const bottom = this.scroller.scrollTop + (ROWS_IN_SIGHT - 1) * ROW_PIXELS;
    if (at * ROW_PIXELS > bottom) this.scroller.scrollTop += ROW_PIXELS;
    this.drawRows();
    this.link(String(next))?.focus({ preventScroll: true });
  }

  saveCsv() {
    const visible = this.table.columns.map((_, at) => at).filter((at) => this.shown[at]);
    const lines = this.lines.map((line) => visible.map((at) => plainCell(this.table.cells[at]?.[line])));
    save(`${this.table.title.split(" ")[0] ?? "table"}.csv`, "text/csv", csv([visible.map((at) => this.heading(at)), ...lines]));
  }
}

/** @param {number} rows */
function spacer(rows) {
  const cell = element("td");
  cell.style.height = `${rows * ROW_PIXELS}px`;
  return element("tr", { class: "spacer", "aria-hidden": "true" }, cell);
}

/**
 * Compares two cells; those without a value come last in either direction, and NaN is larger than any number.
 * @param {Cell | undefined} one @param {Cell | undefined} other @param {boolean} numbers @param {number} sign
 */
function compared(one, other, numbers, sign) {
  const missing = Number(one === null || one === undefined) - Number(other === null || other === undefined);
  if (missing !== 0 || one === null) return missing;
  if (!numbers) return sign * String(one).localeCompare(String(other), "en", { numeric: true });
  const [left, right] = [numeric(one), numeric(other)];
  if (Number.isNaN(left) || Number.isNaN(right)) return sign * (Number(Number.isNaN(left)) - Number(Number.isNaN(right)));
  return sign * (left === right ? 0 : left < right ? -1 : 1);
}
