/** A chart of lines, drawn by uPlot: hover and arrow keys name what is under them, a click or Enter selects it. */

import { selected } from "../parts/address.js";
import { colour, element, lineColour } from "../parts/elements.js";
import { csv, fileName, save, svgText } from "../parts/saving.js";
import { numberText, numeric, printable } from "../parts/text.js";

/**
 * @typedef {{label: string, values: (number | null | undefined)[], dashed?: boolean, hue?: number}} Line where a value is null
 *   the line has a gap, where it is undefined the neighbours are joined; a hue is the number of a colour
 * @typedef {{
 *   title: string, across: string, up: string, names: string[], positions: number[], lines: Line[], marks: MarkContent[],
 *   logarithmic: boolean, named?: boolean, reach?: [number, number], chosen?: (line: number, at: number) => void, own?: (key: string) => number,
 * }} ChartParts
 */

const HEIGHT = 260;
const NARROWEST = 240;
/** The height of a line of text in a saved picture. */
const ROW = 18;
/** The most marks that are named below a chart, and where the pointer is. */
const MOST_MARKS = 12;
/** Longer numbers of an axis are shortened. */
const LONGEST_PLACE = 99_999;
/** The most numbers along a logarithmic axis. */
const MOST_DECADES = 8;
/** By the decades that an axis spans at least, the places that it has in each. */
const PLACES = [
  { span: 3, digits: [1] },
  { span: 1.2, digits: [1, 2, 5] },
  { span: 0.6, digits: [1, 1.5, 2, 3, 5, 7] },
  { span: 0, digits: [1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9] },
];
/** uPlot leaves out an axis for which it finds no distance: its own end at 1e31, and shorter ones need their decimals. */
const LEAST_DISTANCE = 5;
/** The least width of a vertical axis, that of a character on it, and what is beside the characters. */
const LEAST_AXIS = 72;
const CHARACTER = 8;
const MARGIN = 20;
/** The distances between the places of layers and of steps, which are whole. */
const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
/** The distance between the names of layers on an axis, the characters of the longest that fits there, and beyond its end. */
const NAMED_DISTANCE = 120;
const LONGEST_NAME = 16;
const BEYOND = 52;
/** What is zero is drawn so far below the smallest value of a logarithmic axis. */
const BELOW = 10;

export class LineChart {
  /** @param {ChartParts} parts */
  constructor(parts) {
    this.parts = parts;
    this.readout = element("output", { class: "readout" });
    this.area = element("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${parts.title}, ${parts.lines.length} lines over ${parts.names.length} points` });
    const buttons = element(
      "div",
      { class: "controls" },
      element("strong", {}, parts.title),
      element("button", { type: "button", click: () => this.saveCsv() }, "CSV"),
      element("button", { type: "button", click: () => this.saveSvg() }, "SVG"),
    );
    this.box = element("figure", { class: "chart" }, buttons, this.area, this.readout, this.legend());
    /** @type {uPlot | null} */
    this.plot = null;
    this.area.addEventListener("keydown", (event) => this.moved(event));
    this.area.addEventListener("click", () => this.choose());
    new ResizeObserver(() => this.draw()).observe(this.area);
  }

  legend() {
    const { lines, marks } = this.parts;
    const items = lines.map((line, at) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.borderTopColor = `var(--line-${(line.hue ?? at) % 8})`;
      swatch.style.borderTopStyle = line.dashed ? "dashed" : "solid";
      return element("li", {}, swatch, ` ${printable(line.label)}`);
    });
    const marked = marks.slice(0, MOST_MARKS).map((mark) => element("li", { class: "mark" }, printable(mark.text)));
    const more = marks.length > MOST_MARKS ? [element("li", { class: "mark" }, `and ${marks.length - MOST_MARKS} more`)] : [];
    return element("ul", { class: "legend" }, ...items, ...marked, ...more);
  }

  /** Draws the mark of the selected tensor anew. */
  follow() {
    this.plot?.redraw(false);
  }

  /**
   * Draws the chart, in the width that there is and the colours of the theme.
   * @param {boolean} [again] also where its width is the same
   * @param {number} [width] of the paper
   */
  draw(again = false, width = Math.max(this.area.clientWidth, NARROWEST)) {
    if (this.plot !== null && !again) {
      if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
      return;
    }
    this.plot?.destroy();
    this.area.replaceChildren();
    const { positions, lines } = this.parts;
    const floor = this.floor();
    const values = lines.map((line) => line.values.map((value) => this.drawn(value, floor)));
    if (!values.some((line) => line.some(isKnown))) {
      const given = lines.some((line) => line.values.some((value) => value !== undefined));
      const why = given ? `: none is finite${this.parts.logarithmic ? " and larger than 0" : ""}` : "";
      this.area.replaceChildren(element("p", { class: "note" }, `There is no value to draw${why}.`));
      return;
    }
    this.plot = new uPlot(this.options(width, floor, values), [positions, ...values], this.area);
    performance.mark("chart"); // `scripts/bench page` reads the first one
  }

  /** The smallest positive magnitude that is drawn. */
  floor() {
    const found = this.parts.lines.flatMap((line) => line.values).filter((value) => isKnown(value) && value > 0 && Number.isFinite(value));
    return found.reduce((low, value) => Math.min(low ?? Infinity, value ?? Infinity), Infinity) ?? Infinity;
  }

  /** @param {number | null | undefined} value @param {number} floor */
  drawn(value, floor) {
    if (value === undefined) return undefined;
    if (value === null || !Number.isFinite(value)) return null;
    if (!this.parts.logarithmic) return value;
    return value > 0 ? value : Number.isFinite(floor) ? floor / BELOW : null;
  }

  /** Where zeros are on a logarithmic axis; null where there are none. @param {number} floor */
  zero(floor) {
    const found = this.parts.logarithmic && Number.isFinite(floor) && this.parts.lines.some((line) => line.values.some((value) => isKnown(value) && value <= 0));
    return found ? floor / BELOW : null;
  }

  /** @param {number} width @param {number} floor @param {(number | null | undefined)[][]} values @returns {uPlot.Options} */
  options(width, floor, values) {
    const { lines, logarithmic, names, across, up, reach, named } = this.parts;
    const atPlace = (/** @type {number} */ at) => (!Number.isInteger(at) ? "" : named ? shortened(printable(names[at] ?? "")) : place(at));
    const axis = { stroke: colour("text"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid") } };
    const zero = this.zero(floor);
    const points = (this.parts.positions.length || 1) < 60;
    const onlyPoints = (/** @type {uPlot} */ _plot, /** @type {number} */ series) => (points ? null : lonely(values[series - 1] ?? []));
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      scales: { x: { time: false, range: (_plot, low, high) => widened(...(reach ?? [low, high])) }, y: logarithmic ? { distr: 3, log: 10, range: (_plot, low, high) => decades(low ?? floor, high ?? floor) } : {} },
      cursor: { y: false, focus: { prox: 24 } },
      focus: { alpha: 0.4 },
      series: [
        {},
        ...lines.map((line, at) => ({ label: line.label, stroke: lineColour(line.hue ?? at), width: 1.5, dash: line.dashed ? [6, 4] : [], points: { show: points, size: 5, filter: onlyPoints } })),
      ],
      axes: [
        { ...axis, label: across, labelSize: ROW, size: 34, incrs: WHOLE, values: (_plot, splits) => splits.map(atPlace), ...(named ? { space: NAMED_DISTANCE } : {}) },
        { ...axis, label: up, labelSize: ROW, size: (_plot, labels) => axisWidth(labels), values: (_plot, splits) => splits.map((value) => (value === zero ? "0" : tick(value, logarithmic))), ...(logarithmic ? { splits: (_plot, _axis, low, high) => (zero === null ? places(low, high) : [zero, ...places(low, high).filter((at) => at >= floor)]), incrs: (_plot, _axis, low, high) => [Math.max(high - low, LEAST_DISTANCE)], filter: (_plot, splits) => splits } : {}) },
      ],
      hooks: {
        setCursor: [(plot) => this.showAt(plot.cursor.idx ?? null)],
        draw: [(plot) => this.drawMarks(plot)],
      },
      padding: [8, named ? BEYOND : 12, 0, 0],
      ...(names.length === 0 ? { cursor: { show: false } } : {}),
    };
  }

  /** Draws marks, and where the selected tensor is. @param {uPlot} plot */
  drawMarks(plot) {
    const { ctx } = plot;
    ctx.save();
    ctx.strokeStyle = colour("bad");
    ctx.setLineDash([4, 4]);
    for (const mark of this.parts.marks) this.drawUpright(plot, mark.at);
    ctx.setLineDash([]);
    ctx.strokeStyle = colour("accent");
    const own = this.parts.own?.(selected("tensor")) ?? -1;
    if (own >= 0) this.drawUpright(plot, own);
    ctx.restore();
  }

  /** @param {uPlot} plot @param {number} at */
  drawUpright(plot, at) {
    const { ctx, bbox } = plot;
    const x = Math.round(plot.valToPos(at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }

  /** @param {number | null} at */
  showAt(at) {
    if (at === null || at === undefined) {
      this.readout.textContent = "";
      return;
    }
    const values = this.parts.lines.map((line) => {
      const value = line.values[at];
      return value === null || value === undefined ? "" : `${printable(line.label)} ${numberText(value)}`;
    });
    const marks = this.parts.marks.filter((mark) => mark.at === this.parts.positions[at]).slice(0, MOST_MARKS).map((mark) => printable(mark.text));
    this.readout.textContent = [printable(this.parts.names[at] ?? ""), ...values, ...marks].filter(Boolean).join("  ·  ");
  }

  /** @param {KeyboardEvent} event */
  moved(event) {
    if (event.key === "Enter") this.choose();
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined || this.plot === null) return;
    event.preventDefault();
    const last = this.parts.positions.length - 1;
    const at = Math.min(Math.max((this.plot.cursor.idx ?? -by) + by, 0), last);
    this.plot.setCursor({ left: this.plot.valToPos(this.parts.positions[at] ?? 0, "x"), top: 10 });
    this.showAt(at);
  }

  choose() {
    const at = this.plot?.cursor.idx;
    if (at === null || at === undefined || this.parts.chosen === undefined) return;
    const near = this.plot?.series.findIndex((series, number) => number > 0 && /** @type {any} */ (series)._focus) ?? -1;
    this.parts.chosen(Math.max(near - 1, 0), at);
  }

  saveCsv() {
    const { names, positions, lines, across, title } = this.parts;
    const rows = positions.map((position, at) => [position, names[at] ?? "", ...lines.map((line) => line.values[at] ?? "")]);
    save(`${fileName(title)}.csv`, "text/csv", csv([[across, "name", ...lines.map((line) => line.label)], ...rows]));
  }

  saveSvg() {
    if (this.plot !== null) save(`${fileName(this.parts.title)}.svg`, "image/svg+xml", this.svg(this.plot));
  }

  /** @param {uPlot} plot */
  svg(plot) {
    const ratio = devicePixelRatio || 1;
    const [left, top, width, height] = [plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height].map((each) => each / ratio);
    const [x0, y0, w, h] = [left ?? 0, top ?? 0, width ?? 0, height ?? 0];
    const floor = this.floor();
    const paths = this.parts.lines.map((line, at) => {
      const steps = line.values.map((value, number) => {
        const drawn = this.drawn(value, floor);
        if (!isKnown(drawn)) return drawn;
        return `${(plot.valToPos(this.parts.positions[number] ?? 0, "x") + x0).toFixed(1)},${(plot.valToPos(drawn, "y") + y0).toFixed(1)}`;
      });
      // A point alone is a line of no length, which round ends show.
      const parts = pieces(steps).map((piece) => `M${(piece.length > 1 ? piece : [...piece, ...piece]).join(" L")}`);
      return `<path fill="none" stroke="${lineColour(line.hue ?? at)}" stroke-width="1.5" stroke-linecap="round"${line.dashed ? ' stroke-dasharray="6 4"' : ""} d="${parts.join(" ")}"/>`;
    });
    const { marks, names, across, up } = this.parts;
    const uprights = marks.flatMap((mark) => {
      const at = plot.valToPos(mark.at, "x");
      if (at < 0 || at > w) return [];
      const x = (at + x0).toFixed(1);
      return `<line x1="${x}" x2="${x}" y1="${y0}" y2="${y0 + h}" stroke="${colour("bad")}" stroke-dasharray="4 4"/>`;
    });
    const entries = [...this.parts.lines.map((line, at) => ({ text: line.label, hue: lineColour(line.hue ?? at) })), ...marks.slice(0, MOST_MARKS).map((mark) => ({ text: mark.text, hue: colour("bad") }))];
    const keys = entries.map((key, at) => `<text x="${x0}" y="${y0 + h + ROW * (at + 3)}" fill="${key.hue}">${svgText(key.text)}</text>`);
    const reach = [{ name: names[0], x: x0, anchor: "start" }, { name: names.at(-1), x: x0 + w, anchor: "end" }].map((end) => `<text x="${end.x}" y="${y0 + h + ROW - 4}" text-anchor="${end.anchor}">${svgText(end.name ?? "")}</text>`);
    const axes = [
      `<text x="${x0 + w / 2}" y="${y0 + h + 2 * ROW - 4}" text-anchor="middle">${svgText(across)}</text>`,
      `<text transform="translate(${ROW - 6} ${y0 + h / 2}) rotate(-90)" text-anchor="middle">${svgText(up)}</text>`,
    ];
    const [low, high] = [plot.scales["y"]?.min ?? 0, plot.scales["y"]?.max ?? 0];
    const ends = [high, low].map((value, at) => `<text x="${x0 - 6}" y="${at === 0 ? y0 + 10 : y0 + h}" text-anchor="end">${numberText(value)}</text>`);
    return [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${plot.width}" height="${y0 + h + ROW * (entries.length + 3)}" font-family="sans-serif" font-size="12">`,
      `<title>${svgText(this.parts.title)}</title><rect width="100%" height="100%" fill="#fff"/>`,
      `<rect x="${x0}" y="${y0}" width="${w}" height="${h}" fill="none" stroke="#999"/>`,
      ...paths, ...uprights, ...keys, ...axes, ...ends, ...reach, "</svg>",
    ].join("\n");
  }
}

/** @param {number} low @param {number} high @returns {[number, number]} */
function decades(low, high) {
  if (!(low > 0) || !(high > 0)) return [1, 10];
  const [from, to] = [Math.log10(low), Math.log10(high)];
  const margin = Math.max((to - from) * 0.06, 0.125);
  return [10 ** (from - margin), 10 ** (to + margin)];
}

/** A place on the axis as text: 250M for 250,000,000. @param {number} at */
function place(at) {
  return Math.abs(at) <= LONGEST_PLACE ? String(at) : at.toLocaleString("en-US", { notation: "compact", maximumFractionDigits: 3 });
}

/** A name that fits between its neighbours: its end tells layers apart. @param {string} name */
function shortened(name) {
  return name.length <= LONGEST_NAME ? name : `…${name.slice(1 - LONGEST_NAME)}`;
}

/** The places along a logarithmic axis that are numbered: few, however many decades it spans. @param {number} low @param {number} high */
function places(low, high) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const span = Math.log10(high / low);
  const every = Math.ceil((to - from) / MOST_DECADES);
  const digits = PLACES.find((each) => span >= each.span)?.digits ?? [1];
  const decade = Array.from({ length: to - from + 1 }, (_, at) => from + at).filter((power) => power % every === 0);
  return decade.flatMap((power) => digits.map((digit) => digit * 10 ** power)).filter((value) => low <= value && value <= high);
}

/** A place on a vertical axis as text, without zeros at the end: 0.1 beside 1 and 10. @param {number} value @param {boolean} logarithmic */
function tick(value, logarithmic) {
  if (logarithmic && value > 0 && (value < 0.1 || value >= 1e4)) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  return numberText(value).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");
}

/** The width of a vertical axis, of 9 characters such as those of -2.00e+09, too: its first one is the sign. @param {string[] | null} labels */
function axisWidth(labels) {
  return Math.max(LEAST_AXIS, MARGIN + CHARACTER * Math.max(0, ...(labels ?? []).map((each) => each.length)));
}

/** The ends of an axis, which has a length also where there is one place. @param {number} low @param {number} high @returns {[number, number]} */
function widened(low, high) {
  return low === high ? [low - 1, high + 1] : [low, high];
}

/** @template T @param {T} value @returns {value is NonNullable<T>} */
function isKnown(value) {
  return value !== null && value !== undefined;
}

/**
 * Returns what is between the gaps of a line, without what is not known of it.
 * @template T
 * @param {(T | null | undefined)[]} values null in a gap
 * @returns {T[][]}
 */
function pieces(values) {
  /** @type {T[][]} */
  const found = [[]];
  for (const value of values) {
    if (value === null) found.push([]);
    else if (value !== undefined) found.at(-1)?.push(value);
  }
  return found.filter((piece) => piece.length > 0);
}

/** The places of the values that have gaps on both sides, which no line shows. @param {(number | null | undefined)[]} values */
function lonely(values) {
  return pieces(values.map((value, at) => (isKnown(value) ? at : value))).filter((piece) => piece.length === 1).flat();
}

/**
 * Returns cells as the values of a line.
 * @param {Cell[]} cells
 * @returns {(number | null)[]}
 */
export function lineValues(cells) {
  return cells.map((cell) => (cell === null ? null : numeric(cell)));
}
