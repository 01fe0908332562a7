/** Runs: curves over steps, a heat map of layers against steps, and the tables of the step that a slider chooses. */

import { select, selected } from "../parts/address.js";
import { choice, element, section } from "../parts/elements.js";
import { factsTable } from "../tables/facts_table.js";
import { LineChart, lineValues } from "../charts/line_chart.js";
import { RunData, family, innermost } from "../data/run_data.js";
import { NOISE, RunHeat } from "./run_heat.js";
import { magnitudeBars } from "./tensor_view.js";
import { cellText, printable } from "../parts/text.js";
import { VirtualTable } from "../tables/virtual_table.js";

/** What the vertical axes say of rates, and of the noise scale and the ratio of signal to noise. */
const RATE = "learning rate";
const NOISY = "examples, ratio";

/** @typedef {{label: string, steps: number[], values: (number | null)[], run?: RunData, dashed?: boolean}} Curve */

/** The last step at which a layer has a value that is drawn along depth; undefined where none has. @param {RunData} run */
function lastDrawn(run) {
  const rows = run.keys.map((_, row) => row).filter((row) => ["activation", "activation_grad"].includes(family(run.keys[row] ?? "")));
  return run.steps.findLast((_, at) => rows.some((row) => Number(run.cell(row, "rms", "number", at)) > 0));
}

export class RunView {
  /** @param {RunData[]} runs the reference first @param {Content} content */
  constructor(runs, content) {
    this.runs = runs;
    this.several = runs.length > 1;
    this.differences = content.differences ?? [];
    this.differences.forEach((each, at) => runs[at + 1]?.called(each.counterparts, content.keys));
    const steps = runs.flatMap((run) => [...run.steps, ...run.run.curves.flatMap((curve) => curve.steps)]);
    this.first = steps.reduce((low, step) => Math.min(low, step), steps[0] ?? 0);
    this.last = steps.reduce((high, step) => Math.max(high, step), this.first);
    this.from = this.first;
    this.to = this.last;
    this.run = runs[0];
    this.step = this.last;
    /** @type {LineChart[]} */
    this.charts = [];
    /** @type {LineChart[]} */
    this.depthCharts = [];
    this.curves = element("div", {});
    this.fromField = this.stepField("from");
    this.toField = this.stepField("to");
    const range = element("span", { class: "range" }, element("label", {}, "steps from ", this.fromField), element("label", {}, " to ", this.toField));
    this.curveSection = section("curves", "Curves over steps", range);
    this.curveSection.append(this.curves);
    this.heat = new RunHeat(runs);
    /** @type {VirtualTable[][]} by run */
    this.tables = [];
    /** @type {VirtualTable[][]} by run */
    this.noiseTables = [];
    /** @type {VirtualTable[]} */
    this.differenceTables = [];
    this.depth = element("div", {});
    this.shown = element("div", {});
    this.place = element("output", {});
    this.slider = element("input", { type: "range", min: 0, "aria-label": "step", input: () => select({ step: String(this.run?.steps[Number(this.slider.value)] ?? "") }, { quiet: true }) });
    const { box, list } = choice("of", runs.map((run) => run.name), (name) => select({ of: name }, { quiet: true }));
    this.list = list;
    this.stepSection = section("step", "One step", element("label", { class: "slider" }, "step ", this.slider, " ", this.place), ...(this.several ? [box] : []));
    this.stepSection.append(this.depth, this.shown);
    this.range();
    this.drawCurves();
  }

  /** Makes what is below the curves, and returns its sections. @param {Content} content */
  belowCurves(content) {
    const made = (/** @type {TableContent[] | undefined} */ tables) => (tables ?? []).map((table) => new VirtualTable(table, content.keys));
    this.tables = this.runs.map((_, at) => made(content.sets[at]?.tables));
    this.noiseTables = this.runs.map((run) => made(run.run.noise?.tables));
    const named = (/** @type {string} */ name, /** @type {TableContent} */ table) => (this.differences.length > 1 ? { ...table, title: `${name}: ${table.title}` } : table);
    this.differenceTables = made(this.differences.flatMap((each) => each.tables.map((table) => named(each.name, table))));
    const differences = section("differences", "Where the runs differ");
    differences.append(...this.differenceTables.map((table) => table.box));
    this.heat.follow(this.from, this.to);
    this.followStep();
    return [this.heat.section, this.stepSection, ...(this.differences.length > 0 ? [differences] : [])];
  }

  allTables() {
    return [...this.tables.flat(), ...this.noiseTables.flat(), ...this.differenceTables];
  }

  allCharts() {
    return [...this.charts, ...this.depthCharts];
  }

  /** @param {"from" | "to"} name */
  stepField(name) {
    return element("input", { type: "number", min: this.first, max: this.last, value: this[name], change: (event) => select({ [name]: event.target.value }, { quiet: true }) });
  }

  /** Follows the address: the run, the step, and the range of steps. */
  address() {
    if (this.range()) this.drawCurves();
    this.heat.follow(this.from, this.to);
    this.followStep();
  }

  /** Follows the range of steps in the address, and returns whether it is another one. */
  range() {
    const from = this.stepOf("from", this.first);
    const to = Math.max(this.stepOf("to", this.last), from);
    const moved = from !== this.from || to !== this.to;
    [this.from, this.to] = [from, to];
    this.fromField.value = String(from);
    this.toField.value = String(to);
    return moved;
  }

  /** @param {string} name @param {number} otherwise */
  stepOf(name, otherwise) {
    const text = selected(name);
    return text === "" || Number.isNaN(Number(text)) ? otherwise : Number(text);
  }

  followStep() {
    this.run = this.runs.find((run) => run.name === selected("of")) ?? this.runs[0];
    this.list.value = this.run?.name ?? "";
    const usual = this.run === undefined ? this.last : lastDrawn(this.run) ?? this.last;
    const at = this.run?.positionFrom(this.stepOf("step", usual)) ?? -1;
    this.slider.max = String(Math.max((this.run?.steps.length ?? 0) - 1, 0));
    this.slider.value = String(at);
    this.step = this.run?.steps[at] ?? 0;
    const isBefore = this.step === usual && usual !== this.run?.steps.at(-1);
    this.place.textContent = at < 0 ? "none was recorded" : `${this.step}${isBefore ? ", the last with a value to draw along depth" : ""}`;
    this.drawStep(at);
  }

  drawCurves() {
    const has = (/** @type {string} */ part) => [...new Set(this.runs.flatMap((run) => run.curveNames()))].filter((name) => name.includes(part));
    const moving = has("learning_rate").filter((name) => this.runs.some((run) => new Set(run.curve(name)?.values).size > 1));
    const noisy = this.runs.flatMap((run) => this.noiseCurves(run, "", ""));
    const groups = [
      { title: "Loss", up: "loss", names: has("loss") },
      { title: "Norms", up: "l2", names: has("_norm") },
      { title: "Learning rate", up: RATE, names: moving },
    ].flatMap((group) => (this.several ? group.names.map((name) => ({ ...group, title: name, names: [name] })) : [group]));
    const charts = groups.map((group) => this.curve(group.title, this.runs.flatMap((run) => group.names.flatMap((name) => this.curveOf(run, name))), group.up, group.up !== RATE));
    if (noisy.length > 0) charts.push(this.curve("Noise of gradients, all parameters", this.runs.flatMap((run) => [...this.noiseCurves(run, "", this.suffix(run)), ...this.batchSize(run)]), NOISY, true));
    const differing = this.differences.map((each) => ({ label: this.differences.length > 1 ? each.name : "rel_l2", run: this.runs.find((run) => run.name === each.name), steps: each.steps, values: lineValues(each.largest) })).filter((line) => line.values.some((value) => value !== 0));
    if (differing.length > 0) charts.unshift(this.curve(`Difference from ${printable(this.runs[0]?.name ?? "")}: the largest rel_l2 of each step, at least`, differing, "rel_l2", true));
    this.charts = charts.filter((chart) => chart.parts.lines.length > 0);
    this.curves.replaceChildren(...this.charts.map((chart) => chart.box));
  }

  /** Of several runs each has a colour, and the reference is dashed. @param {RunData | undefined} run */
  style(run) {
    return this.several && run !== undefined ? { hue: this.runs.indexOf(run), dashed: run === this.runs[0] } : {};
  }

  /** @param {RunData} run */
  suffix(run) {
    return this.several ? ` of ${run.name}` : "";
  }

  /** @param {RunData} run @param {string} name @returns {Curve[]} */
  curveOf(run, name) {
    const curve = run.curve(name);
    return curve === undefined ? [] : [{ label: this.several ? run.name : name, run, dashed: name.endsWith("_clipped"), ...curve }];
  }

  /** The examples of which the noise was measured, to compare the noise scale with. @param {RunData} run @returns {Curve[]} */
  batchSize(run) {
    const { noise } = run;
    const values = noise?.steps.map((_, at) => Math.round(noise.value(0, "groups", at) * noise.value(0, "group_size", at))) ?? [];
    return noise === null || values.some(Number.isNaN) ? [] : [{ label: `examples in the batch${this.suffix(run)}`, dashed: true, steps: noise.steps, values }];
  }

  /** @param {RunData} run @param {string} key "" of all parameters @param {string} suffix @returns {Curve[]} */
  noiseCurves(run, key, suffix) {
    const { noise } = run;
    const row = run.noiseKeys.indexOf(key);
    if (noise === null || row < 0) return [];
    return NOISE.filter((name) => noise.names.includes(name)).map((name) => ({ label: `${name}${suffix}`, steps: noise.steps, values: noise.series(row, name) })).filter((line) => line.values.some((value) => value !== null));
  }

  /** @param {number} step */
  inRange(step) {
    return this.from <= step && step <= this.to;
  }

  /**
   * Returns a chart over the chosen steps, with alarms and first differences as marks.
   * @param {string} title
   * @param {Curve[]} curves
   * @param {string} up what the values are
   * @param {boolean} logarithmic where no value is negative
   */
  curve(title, curves, up, logarithmic) {
    const steps = [...new Set(curves.flatMap((line) => line.steps))].filter((step) => this.inRange(step)).sort((one, other) => one - other);
    const places = new Map(steps.map((step, at) => [step, at]));
    const lines = curves.map((line) => {
      /** @type {(number | null | undefined)[]} */
      const values = steps.map(() => undefined);
      line.steps.forEach((step, at) => {
        const place = places.get(step);
        if (place !== undefined) values[place] = line.values[at] ?? null;
      });
      return { label: line.label, values, dashed: line.dashed ?? false, ...this.style(line.run) };
    });
    const alarms = this.runs.flatMap((run) => run.run.alarms.map((alarm) => ({ at: alarm.step, text: `step ${alarm.step}: ${alarm.rule}${this.suffix(run)}` })));
    const first = this.differences.flatMap((each) => (each.first === null ? [] : [{ at: each.first, text: `step ${each.first}: first difference${this.differences.length > 1 ? ` of ${each.name}` : ""}` }]));
    /** @type {Map<string, MarkContent & {times: number}>} */
    const marks = new Map();
    for (const mark of [...first, ...alarms]) marks.set(mark.text, { ...mark, times: (marks.get(mark.text)?.times ?? 0) + 1 });
    const negative = curves.some((line) => line.values.some((value) => value !== null && value < 0));
    return new LineChart({
      title, across: "step", up, names: steps.map((step) => `step ${step}`), positions: steps, lines,
      marks: [...marks.values()].filter((mark) => this.inRange(mark.at)).map((mark) => (mark.times === 1 ? mark : { ...mark, text: `${mark.text} (${mark.times} times)` })),
      logarithmic: logarithmic && !negative,
      reach: [this.from, this.to],
      chosen: (_line, at) => select({ step: String(steps[at] ?? "") }),
    });
  }

  /** @param {number} at the position of the step */
  drawStep(at) {
    const { run } = this;
    if (run === undefined) return;
    const number = this.runs.indexOf(run);
    const tables = [...(this.tables[number] ?? [])];
    tables.forEach((table) => table.replaceCells(run.cells(table.table, at)));
    const measured = RunData.lastUpTo(run.noise?.steps ?? [], this.step ?? 0);
    for (const table of measured < 0 ? [] : (this.noiseTables[number] ?? [])) {
      table.rename(`Noise of gradients, of step ${run.noise?.steps[measured]}`);
      table.replaceCells(run.noiseCells(table.table, measured));
      tables.push(table);
    }
    this.shown.replaceChildren(...tables.map((table) => table.box));
    tables.forEach((table) => table.drawRows());
    this.drawDepth();
  }

  /** Activations and their gradients along depth, of the reference's layers: in one chart of one run, in one each of several. */
  drawDepth() {
    const of = this.runs.map((run) => run.keys.filter((key) => ["activation", "activation_grad"].includes(family(key))));
    const own = of.find((keys) => keys.length > 0) ?? [];
    const layers = innermost([...new Set(own.map((key) => key.slice(key.indexOf("/") + 1)))]);
    const every = ["activation", "activation_grad"].flatMap((name) => this.runs.map((run) => this.depthLine(run, name, layers)));
    const known = every.filter((line) => line.values.some((value) => typeof value === "number"));
    const lines = known.length > 0 ? known : every.filter((line) => line.values.includes(null)); // a chart of none says why
    const groups = this.several ? ["activation", "activation_grad"] : [""];
    const charts = layers.length < 2 ? [] : groups.map((group) => ({ group, lines: lines.filter((line) => group === "" || line.family === group) }));
    this.depthCharts = charts.filter((chart) => chart.lines.length > 0).map((chart) => new LineChart({
      title: chart.group === "" ? `Along depth at step ${this.step}` : `${chart.group} rms along depth at step ${this.step}`,
      across: "layer, in execution order", up: "rms", names: layers, positions: layers.map((_, at) => at), marks: [], logarithmic: true, named: true,
      lines: chart.lines,
      own: (key) => layers.indexOf(key.slice(key.indexOf("/") + 1)),
      chosen: (line, at) => select({ tensor: `${chart.lines[line]?.family ?? "activation"}/${layers[at] ?? ""}` }),
    }));
    this.depth.replaceChildren(...this.depthCharts.map((chart) => chart.box));
  }

  /** @param {RunData} run @param {string} of a family @param {string[]} layers */
  depthLine(run, of, layers) {
    const at = RunData.lastUpTo(run.steps, this.step ?? 0);
    const values = layers.map((layer) => {
      const row = run.rows.get(`${of}/${layer}`);
      const value = run.cell(row, "rms", "number", at);
      return typeof value === "number" ? value : row === undefined ? undefined : null;
    });
    const other = run.steps[at] === this.step ? "" : `, step ${run.steps[at] ?? "none"}`;
    return { family: of, label: this.several ? `${run.name}${other}` : `${of} rms`, values, dashed: of === "activation_grad", ...this.style(run) };
  }

  /**
   * Returns what the runs know of one tensor: facts, curves of its statistics, its histogram.
   * @param {string} selectedKey that of the reference, or another run's own
   * @returns {{charts: LineChart[], elements: Element[]}}
   */
  tensor(selectedKey) {
    const key = this.runs.map((run) => run.renamed.get(selectedKey)).find((each) => each !== undefined) ?? selectedKey;
    const knowing = this.runs.filter((run) => run.rows.has(key));
    if (knowing.length === 0) return { charts: [], elements: [] };
    const names = [...new Set(knowing.flatMap((run) => run.names))];
    const lines = names.flatMap((name) => knowing.map((run) => ({ name, label: this.several ? run.name : name, run, steps: run.steps, values: run.stats.series(run.rows.get(key) ?? 0, name) }))).filter((line) => line.values.some((value) => value !== null && value !== 0));
    const signed = new Set(lines.filter((line) => line.values.some((value) => value !== null && value < 0)).map((line) => line.name));
    const groups = this.several
      ? names.map((name) => ({ title: `${name} over steps`, up: name, lines: lines.filter((line) => line.name === name) }))
      : [false, true].map((sign) => ({ title: sign ? "Statistics with a sign over steps" : "Statistics over steps", up: "statistic", lines: lines.filter((line) => signed.has(line.name) === sign) }));
    const noise = knowing.flatMap((run) => this.noiseCurves(run, key, this.suffix(run)));
    const charts = [...groups, { title: "Noise of the gradient", up: NOISY, lines: noise }].filter((group) => group.lines.length > 0).map((group) => this.curve(group.title, group.lines, group.up, true));
    return { charts, elements: [...this.histograms(key, knowing), ...charts.map((chart) => chart.box), ...this.facts(key, knowing, names)] };
  }

  /** @param {string} key @param {RunData[]} knowing */
  histograms(key, knowing) {
    const found = knowing.flatMap((run) => {
      const histogram = run.histogram(key, this.step ?? 0);
      return histogram === null ? [] : [{ at: this.runs.indexOf(run), first: histogram.octaves[0] ?? 0, counts: histogram.octaves.slice(1), step: histogram.step }];
    });
    return magnitudeBars(`Elements by magnitude at step ${[...new Set(found.map((each) => each.step))].join(" and ")}`, found);
  }

  /** @param {string} key @param {RunData[]} knowing @param {string[]} names */
  facts(key, knowing, names) {
    const places = knowing.map((run) => ({ run, row: run.rows.get(key) ?? 0, at: RunData.lastUpTo(run.steps, this.step ?? 0) }));
    const about = ["shape", "dtype", "layer", "source"].map((name) => ({ name, texts: places.map(({ run, row }) => printable(run.run.about[row]?.[name] ?? "")) }));
    const stats = names.map((name) => ({ name, texts: places.map(({ run, row, at }) => cellText(run.cell(row, name, "number", at), "number")) }));
    return factsTable(key, [...about, ...stats].filter((line) => line.texts.some((text) => text !== "")), this.several ? knowing.map((run) => run.name) : [`step ${this.step}`]);
  }
}
