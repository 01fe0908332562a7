/** A run: curves over steps, a heat map of layers against steps, and the tables of the step that a slider chooses. */

import { select, selected } from "./address.js";
import { unpacked } from "./content.js";
import { choice, element, section } from "./elements.js";
import { HeatMap } from "./heat_map.js";
import { LineChart, lineValues } from "./line_chart.js";
import { magnitudeBars } from "./tensor_view.js";
import { VirtualTable } from "./virtual_table.js";

const COUNTED = ["zeros", "nan", "inf"];

export class RunView {
  /**
   * @param {RunContent} run
   * @param {Uint8Array} packed
   * @param {TableContent[]} tables the tables of a step, whose cells are replaced
   * @param {string[]} keys
   */
  constructor(run, packed, tables, keys) {
    this.run = run;
    this.keys = keys;
    this.rows = new Map(run.keys.map((key, row) => [key, row]));
    this.packed = packed;
    this.names = run.packed.includes("rms") ? [...run.packed, "l2"] : run.packed;
    /** @type {Map<string, Float32Array>} */
    this.unpacked = new Map();
    this.from = 0;
    this.to = run.steps.length - 1;
    this.families = [...new Set(run.keys.map((key) => family(keys[key] ?? "")))];
    this.heat = new HeatMap((row, step) => this.choose(row, step));
    /** @type {number[]} */
    this.heatRows = [];
    this.curves = element("div", {});
    this.tables = tables.map((table) => new VirtualTable(table, keys));
    this.depth = element("div", {});
    this.place = element("output", {});
    this.slider = element("input", { type: "range", min: 0, max: Math.max(run.steps.length - 1, 0), "aria-label": "step", input: () => this.slide(Number(this.slider.value)) });
    this.curveSection = section("curves", "Curves over steps", this.rangeControls());
    this.curveSection.append(this.curves);
    const ofFamily = choice("of", this.families, (name) => {
      this.family = name;
      this.drawHeat();
    });
    const ofStatistic = choice("statistic", this.names, (name) => {
      this.heatStatistic = name;
      this.drawHeat();
    });
    this.heatSection = section("heat", "Layers against steps", ofFamily.box, ofStatistic.box);
    this.heatSection.append(this.heat.box);
    this.stepSection = section("step", "One step", element("label", { class: "slider" }, "step ", this.slider, " ", this.place));
    this.stepSection.append(this.depth, ...this.tables.map((table) => table.box));
    this.heatStatistic = "rms";
    this.family = this.families.includes("activation_grad") ? "activation_grad" : (this.families[0] ?? "");
    ofFamily.list.value = this.family;
    ofStatistic.list.value = this.heatStatistic;
    /** @type {LineChart[]} */
    this.charts = [];
    this.address();
  }

  /**
   * Returns a statistic by tensor and step; it is unpacked when it is first asked for.
   * @param {string} name
   * @returns {Float32Array | undefined}
   */
  statistic(name) {
    const at = this.run.packed.indexOf(name);
    const found = this.unpacked.get(name);
    if (found !== undefined || !this.names.includes(name)) return found;
    const [rows, steps] = [this.run.keys.length, this.run.steps.length];
    const plane = 3 * rows * steps;
    const made = at < 0 ? this.norms() : unpacked(this.packed.subarray(at * plane, (at + 1) * plane), rows, steps, this.run.octave_parts);
    this.unpacked.set(name, made);
    return made;
  }

  /** The l2 norms: those of the finite elements, of which the rms is known. */
  norms() {
    const columns = this.run.steps.length;
    const [rms, nan, inf] = ["rms", "nan", "inf"].map((name) => this.statistic(name));
    return Float32Array.from(rms ?? [], (value, at) => {
      const size = this.run.sizes[Math.floor(at / columns)] ?? NaN;
      return value * Math.sqrt(size - (nan?.[at] || 0) - (inf?.[at] || 0));
    });
  }

  rangeControls() {
    const field = (/** @type {"from" | "to"} */ name) =>
      element("input", { type: "number", min: this.run.steps[0] ?? 0, max: this.run.steps.at(-1) ?? 0, value: this.run.steps[this[name]] ?? 0, change: (event) => select({ [name]: event.target.value }, { quiet: true }) });
    this.fromField = field("from");
    this.toField = field("to");
    return element("span", { class: "range" }, element("label", {}, "steps from ", this.fromField), element("label", {}, " to ", this.toField));
  }

  /** Follows the address: the step, the range of steps, and the selected tensor. */
  address() {
    const { steps } = this.run;
    const at = (/** @type {string} */ name, /** @type {number} */ otherwise) => {
      const text = selected(name);
      if (text === "" || Number.isNaN(Number(text))) return otherwise;
      const found = steps.findIndex((step) => step >= Number(text));
      return found < 0 ? steps.length - 1 : found;
    };
    this.from = at("from", 0);
    this.to = Math.max(at("to", steps.length - 1), this.from);
    this.slider.value = String(at("step", steps.length - 1));
    this.drawCurves();
    this.drawHeat();
    this.drawStep();
  }

  /** @param {number} at */
  slide(at) {
    select({ step: String(this.run.steps[at] ?? "") }, { quiet: true });
  }

  /** @param {number} row @param {number} step */
  choose(row, step) {
    const key = this.run.keys[this.heatRows[row] ?? -1];
    if (key === undefined) return;
    select({ tensor: this.keys[key] ?? "", step: String(this.run.steps[this.from + step] ?? "") });
  }

  drawCurves() {
    const all = this.run.curves.columns;
    const columns = all.filter((column) => column.name === "loss");
    const norms = all.filter((column) => column.name.endsWith("_norm") || column.name.endsWith("_clipped"));
    const rates = all.filter((column) => column.name === "learning_rate" && new Set(column.values).size > 1);
    const parts = [
      { title: "Loss", columns, logarithmic: columns.every((column) => column.values.every((value) => typeof value !== "number" || value > 0)) },
      { title: "Norms", columns: norms, logarithmic: true },
      { title: "Learning rate", columns: rates, logarithmic: false },
    ];
    this.charts = parts.filter((part) => part.columns.length > 0).map((part) => this.curve(part.title, this.run.curves.steps, part.columns.map((column) => ({ label: column.name, values: lineValues(column.values) })), part.logarithmic));
    this.curves.replaceChildren(...this.charts.map((chart) => chart.box));
  }

  /**
   * Returns a chart over the chosen steps, with alarms as marks.
   * @param {string} title
   * @param {number[]} all
   * @param {{label: string, values: (number | null)[]}[]} lines
   * @param {boolean} logarithmic
   */
  curve(title, all, lines, logarithmic) {
    const [low, high] = [this.run.steps[this.from] ?? 0, this.run.steps[this.to] ?? 0];
    const chosen = all.map((_, at) => at).filter((at) => low <= (all[at] ?? 0) && (all[at] ?? 0) <= high);
    const steps = chosen.map((at) => all[at] ?? 0);
    const marks = this.run.alarms.map((alarm) => ({ at: alarm.step, text: `step ${alarm.step}: ${alarm.rule}` }));
    return new LineChart({
      title,
      across: "step",
      names: steps.map((step) => `step ${step}`),
      positions: steps,
      lines: lines.map((line) => ({ ...line, values: chosen.map((at) => line.values[at] ?? null) })),
      marks: marks.filter((mark) => mark.at >= (steps[0] ?? 0) && mark.at <= (steps.at(-1) ?? 0)),
      logarithmic,
      chosen: (_line, at) => select({ step: String(steps[at] ?? "") }),
    });
  }

  drawHeat() {
    const values = this.statistic(this.heatStatistic);
    if (values === undefined) return;
    const rows = this.run.keys.map((_, row) => row).filter((row) => family(this.keys[this.run.keys[row] ?? -1] ?? "") === this.family);
    this.heatRows = rows;
    const columns = this.run.steps.length;
    this.heat.show({
      names: rows.map((row) => this.keys[this.run.keys[row] ?? -1] ?? ""),
      steps: this.run.steps.slice(this.from, this.to + 1),
      values: (row, step) => values[(rows[row] ?? 0) * columns + this.from + step] ?? NaN,
    });
  }

  drawStep() {
    const at = Number(this.slider.value);
    this.place.textContent = `${this.run.steps[at] ?? ""}`;
    for (const table of this.tables) {
      const keys = table.table.keys;
      const cells = table.table.columns.map((column, number) => {
        const families = this.run.groups[column.group] ?? [];
        if (!this.names.includes(column.heading)) return table.table.cells[number] ?? [];
        return keys.map((line) => this.cell(this.rowOf(line, families), column.heading, column.kind, at));
      });
      table.replaceCells(cells);
    }
    this.drawDepth(at);
  }

  /** @param {number[]} line @param {string[]} families */
  rowOf(line, families) {
    const key = families.length === 0 ? line[0] : line.find((each) => families.includes(family(this.keys[each] ?? "")));
    return key === undefined ? undefined : this.rows.get(key);
  }

  /** @param {number | undefined} row @param {string} name @param {string} kind @param {number} at @returns {Cell} */
  cell(row, name, kind, at) {
    if (row === undefined) return null;
    const value = this.statistic(name)?.[row * this.run.steps.length + at] ?? NaN;
    if (Number.isNaN(value)) return null;
    const size = this.run.sizes[row] ?? null;
    if (kind === "share" && COUNTED.includes(name)) return size ? value / size : null;
    return COUNTED.includes(name) ? Math.round(value) : value;
  }

  /** @param {number} at */
  drawDepth(at) {
    const named = this.run.keys.map((key, row) => ({ key: this.keys[key] ?? "", row }));
    const lines = ["activation", "activation_grad"].map((name) => ({ label: `${name} rms`, rows: named.filter((each) => family(each.key) === name) }));
    const layers = (lines[0]?.rows ?? []).map((each) => each.key.slice("activation/".length));
    if (layers.length < 2) return;
    const chart = new LineChart({
      title: `Along depth at step ${this.run.steps[at] ?? ""}`,
      across: "layer, in execution order",
      names: layers,
      positions: layers.map((_, number) => number),
      lines: lines.map((line) => {
        const rows = new Map(line.rows.map((each) => [each.key.slice(each.key.indexOf("/") + 1), each.row]));
        return { label: line.label, values: layers.map((layer) => { const value = this.cell(rows.get(layer), "rms", "number", at); return typeof value === "number" ? value : null; }) };
      }),
      marks: [],
      logarithmic: true,
      chosen: (line, number) => select({ tensor: `${line === 0 ? "activation" : "activation_grad"}/${layers[number] ?? ""}` }),
    });
    this.depth.replaceChildren(chart.box);
    this.depthChart = chart;
  }

  /**
   * Returns what a run knows of one tensor: the curves of its statistics.
   * @param {string} key
   * @returns {LineChart[]}
   */
  tensorCharts(key) {
    const row = this.run.keys.map((number) => this.keys[number]).indexOf(key);
    if (row < 0) return [];
    const columns = this.run.steps.length;
    const lines = this.names.map((name) => ({ label: name, values: [...(this.statistic(name) ?? []).slice(row * columns, (row + 1) * columns)].map((value) => (Number.isNaN(value) ? null : value)) }));
    const known = lines.filter((line) => line.values.some((value) => value !== null && value !== 0));
    const signed = known.filter((line) => line.values.some((value) => value !== null && value < 0));
    const positive = known.filter((line) => !signed.includes(line));
    return [
      ...(positive.length > 0 ? [this.curve("Statistics over steps", this.run.steps, positive, true)] : []),
      ...(signed.length > 0 ? [this.curve("Statistics with a sign over steps", this.run.steps, signed, false)] : []),
    ];
  }

  /**
   * Returns the histogram of a tensor at the chosen step, or at the last one before it that has histograms.
   * @param {string} key
   * @returns {Element[]}
   */
  tensorHistogram(key) {
    const row = this.run.keys.map((number) => this.keys[number]).indexOf(key);
    const step = this.run.steps[Number(this.slider.value)] ?? 0;
    const found = this.run.histograms.filter((each) => each.step <= step).at(-1) ?? this.run.histograms[0];
    const octaves = found?.octaves[row] ?? null;
    return octaves === null || found === undefined ? [] : magnitudeBars(`Elements by magnitude at step ${found.step}`, [{ at: 0, first: octaves[0] ?? 0, counts: octaves.slice(1) }]);
  }

  allCharts() {
    return [...this.charts, ...(this.depthChart === undefined ? [] : [this.depthChart])];
  }
}

/** @param {string} key */
function family(key) {
  return key.startsWith("slot/") ? "slot" : key.slice(0, key.indexOf("/"));
}
