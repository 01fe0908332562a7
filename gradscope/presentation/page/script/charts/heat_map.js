/** A heat map of tensors against steps, on a canvas of one pixel for each number. */

import { colour, element } from "../parts/elements.js";
import { csv, fileName, save, svgText } from "../parts/saving.js";
import { numberText, printable } from "../parts/text.js";

/**
 * @typedef {{title: string, names: string[], steps: number[], values: (row: number, step: number) => number,
 *   broken: (row: number, step: number) => number}} HeatParts
 */

const LEAST_ROW_PIXELS = 3;
const MOST_ROW_PIXELS = 18;
const HEIGHT = 420;
/** What a name beside its row takes. */
const NAME_PIXELS = 14;
const COLOURS = "red has elements that are not finite, grey has no number";

export class HeatMap {
  /** @param {(name: string, step: number) => void} chosen */
  constructor(chosen) {
    this.chosen = chosen;
    /** @type {HeatParts} */
    this.parts = { title: "", names: [], steps: [], values: () => NaN, broken: () => 0 };
    this.at = { row: 0, step: 0 };
    this.canvas = element("canvas", { class: "heat", tabindex: 0, role: "img", "aria-label": "heat map of layers against steps" });
    this.names = element("div", { class: "heat-names", "aria-hidden": "true" });
    this.readout = element("output", { class: "readout" });
    this.scale = element("p", { class: "note" });
    const buttons = [element("button", { type: "button", click: () => this.saveCsv() }, "CSV"), element("button", { type: "button", click: () => this.saveSvg() }, "SVG")];
    this.box = element("div", {}, element("div", { class: "heat-box" }, this.names, this.canvas), this.readout, this.scale, element("div", { class: "controls" }, ...buttons));
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("click", (event) => {
      this.point(event);
      this.choose();
    });
    this.canvas.addEventListener("keydown", (event) => this.moved(event));
  }

  /** @param {HeatParts} parts */
  show(parts) {
    this.parts = parts;
    this.draw();
  }

  /** Draws all numbers; magnitudes on a logarithmic scale. */
  draw() {
    const { names, steps, values, broken } = this.parts;
    const [rows, columns] = [Math.max(names.length, 1), Math.max(steps.length, 1)];
    const numbers = new Float32Array(names.length * steps.length);
    let [low, high] = [Infinity, 0];
    for (let row = 0; row < names.length; row++) {
      for (let step = 0; step < steps.length; step++) {
        const size = broken(row, step) > 0 ? Infinity : Math.abs(values(row, step));
        numbers[row * steps.length + step] = size;
        if (size > 0 && Number.isFinite(size)) [low, high] = [Math.min(low, size), Math.max(high, size)];
      }
    }
    this.canvas.width = columns;
    this.canvas.height = rows;
    const pixels = Math.min(Math.max(HEIGHT / rows, LEAST_ROW_PIXELS), MOST_ROW_PIXELS);
    this.canvas.style.height = `${rows * pixels}px`;
    this.nameRows(pixels);
    const context = this.canvas.getContext("2d");
    if (context === null) return;
    const image = context.createImageData(columns, rows);
    const bad = channels(colour("bad"));
    const none = channels(colour("grid"));
    const span = Math.log(high / low) || 1;
    numbers.forEach((size, at) => {
      const shade = size === 0 ? 0 : Math.log(size / low) / span;
      const found = Number.isNaN(size) ? none : Number.isFinite(size) ? ramp(shade) : bad;
      image.data.set([...found, 255], at * 4);
    });
    context.putImageData(image, 0, 0);
    this.scale.textContent = high > 0 ? `dark ${numberText(low)} to bright ${numberText(high)}, logarithmic; ${COLOURS}` : `none is larger than zero; ${COLOURS}`;
  }

  /** Writes the names of tensors beside their rows, of every row for which there is room. @param {number} pixels of a row */
  nameRows(pixels) {
    const { names } = this.parts;
    const every = Math.ceil(NAME_PIXELS / pixels);
    const named = names.filter((_, row) => row % every === 0).map((name, at) => {
      const own = element("div", { title: printable(name) }, printable(name.slice(name.indexOf("/") + 1)));
      own.style.height = `${Math.min(every, names.length - at * every) * pixels}px`;
      own.style.lineHeight = `${every === 1 ? pixels : NAME_PIXELS}px`;
      return own;
    });
    this.names.replaceChildren(...named);
  }

  /** @param {MouseEvent} event */
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const { names, steps } = this.parts;
    const row = Math.floor(((event.clientY - box.top) / box.height) * names.length);
    const step = Math.floor(((event.clientX - box.left) / box.width) * steps.length);
    this.showAt(row, step);
  }

  /** @param {number} row @param {number} step */
  showAt(row, step) {
    const { names, steps, values, broken } = this.parts;
    if (names.length === 0 || steps.length === 0) return;
    this.at = { row: Math.min(Math.max(row, 0), names.length - 1), step: Math.min(Math.max(step, 0), steps.length - 1) };
    const value = values(this.at.row, this.at.step);
    const found = broken(this.at.row, this.at.step);
    const texts = [...(Number.isNaN(value) ? [] : [numberText(value)]), ...(found > 0 ? [`${found.toLocaleString("en-US")} elements not finite`] : [])];
    this.readout.textContent = [printable(names[this.at.row] ?? ""), `step ${steps[this.at.step]}`, ...(texts.length > 0 ? texts : ["no number"])].join("  ·  ");
  }

  choose() {
    const { names, steps } = this.parts;
    const [name, step] = [names[this.at.row], steps[this.at.step]];
    if (name !== undefined && step !== undefined) this.chosen(name, step);
  }

  saveCsv() {
    const { title, names, steps, values } = this.parts;
    const lines = names.map((name, row) => [name, ...steps.map((_, at) => values(row, at))]);
    save(`${fileName(title)}.csv`, "text/csv", csv([["tensor", ...steps.map((step) => `step ${step}`)], ...lines]));
  }

  saveSvg() {
    const { title, names, steps } = this.parts;
    const [width, height] = [900, Math.max(names.length * LEAST_ROW_PIXELS, HEIGHT)];
    const ends = `${printable(names[0] ?? "")} to ${printable(names.at(-1) ?? "")}; steps ${steps[0]} to ${steps.at(-1)}; ${this.scale.textContent}`;
    const lines = [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height + 44}" font-family="sans-serif" font-size="12">`,
      `<title>${svgText(title)}</title><rect width="100%" height="100%" fill="#fff"/><text x="4" y="14">${svgText(title)}</text>`,
      `<image href="${this.canvas.toDataURL()}" y="20" width="${width}" height="${height}" preserveAspectRatio="none" style="image-rendering:pixelated"/>`,
      `<text x="4" y="${height + 36}">${svgText(ends)}</text></svg>`,
    ];
    save(`${fileName(title)}.svg`, "image/svg+xml", lines.join("\n"));
  }

  /** @param {KeyboardEvent} event */
  moved(event) {
    if (event.key === "Enter") this.choose();
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [];
    if (down === undefined || right === undefined) return;
    event.preventDefault();
    this.showAt(this.at.row + down, this.at.step + right);
  }
}

/** @param {string} hex @returns {number[]} */
function channels(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** Colours of growing brightness, which are also distinct in grey (those of viridis at five points). */
const RAMP = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"].map(channels);

/** @param {number} shade 0..1 @returns {number[]} */
export function ramp(shade) {
  const place = Math.min(Math.max(shade, 0), 1) * (RAMP.length - 1);
  const first = Math.min(Math.floor(place), RAMP.length - 2);
  const [one, other] = [RAMP[first] ?? [0, 0, 0], RAMP[first + 1] ?? [0, 0, 0]];
  const part = place - first;
  return [0, 1, 2].map((at) => Math.round((one[at] ?? 0) * (1 - part) + (other[at] ?? 0) * part));
}
