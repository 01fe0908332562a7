/** The numbers of one run: statistics by tensor and step, which are unpacked when they are first asked for. */

import { packedBytes, unpacked } from "./content.js";
import { numeric } from "../parts/text.js";

const COUNTED = ["zeros", "nan", "inf"];
/** The most scopes of a name; one from a file may have any number. */
const MOST_SCOPES = 64;

/** Statistics of some tensors over some steps. */
class Planes {
  /** @param {Uint8Array} packed @param {string[]} names @param {number} rows @param {number[]} steps @param {number} parts */
  constructor(packed, names, rows, steps, parts) {
    this.packed = packed;
    this.names = names;
    this.rows = rows;
    this.steps = steps;
    this.parts = parts;
    /** @type {Map<string, Float32Array>} */
    this.known = new Map();
    /** @type {Map<string, () => Float32Array>} what follows from other planes */
    this.derived = new Map();
  }

  /** @param {string} name @returns {Float32Array | undefined} */
  plane(name) {
    const known = this.known.get(name);
    const [at, derived] = [this.names.indexOf(name), this.derived.get(name)];
    if (known !== undefined || (at < 0 && derived === undefined)) return known;
    const size = packedBytes(this.rows, this.steps.length);
    const made = derived?.() ?? unpacked(this.packed.subarray(at * size, (at + 1) * size), this.rows, this.steps.length, this.parts);
    this.known.set(name, made);
    return made;
  }

  /** @param {number} row @param {string} name @param {number} at the position of the step */
  value(row, name, at) {
    return this.plane(name)?.[row * this.steps.length + at] ?? NaN;
  }

  /** @param {number} row @param {string} name @returns {(number | null)[]} */
  series(row, name) {
    const columns = this.steps.length;
    return [...(this.plane(name) ?? []).slice(row * columns, (row + 1) * columns)].map((value) => (Number.isNaN(value) ? null : value));
  }
}

export class RunData {
  /**
   * @param {RunContent} run
   * @param {Uint8Array} packed the packed numbers of the page
   * @param {string[]} keys
   */
  constructor(run, packed, keys) {
    this.run = run;
    this.name = run.name;
    this.steps = run.steps;
    this.keys = run.keys.map((key) => keys[key] ?? "");
    this.rows = new Map(this.keys.map((key, row) => [key, row]));
    this.rowOfNumber = new Map(run.keys.map((key, row) => [key, row]));
    const own = packed.subarray(run.offset);
    this.stats = new Planes(own, run.packed, run.keys.length, run.steps, run.octave_parts);
    if (run.packed.includes("rms")) this.stats.derived.set("l2", () => this.norms());
    this.names = [...run.packed, ...(run.packed.includes("rms") ? ["l2"] : [])];
    const noise = run.noise;
    this.noise = noise === null ? null : new Planes(own.subarray(noise.offset), noise.packed, noise.keys.length, noise.steps, run.octave_parts);
    this.noiseKeys = (noise?.keys ?? []).map((key) => (key === null ? "" : (keys[key] ?? "")));
    this.families = [...new Set(this.keys.map(family))];
    /** @type {Map<string, string>} by the run's own key that of the reference, where they differ */
    this.renamed = new Map();
  }

  /**
   * Takes the names of the reference for the tensors that are its own under another name.
   * @param {Record<string, number | null>} counterparts by the number of the reference's key that of this run's
   * @param {string[]} keys
   */
  called(counterparts, keys) {
    const own = new Map(this.rows);
    for (const [number, other] of Object.entries(counterparts)) {
      const [key, row] = [keys[Number(number)] ?? "", own.get(keys[other ?? -1] ?? "")];
      if (row === undefined) this.rows.delete(key);
      else this.rows.set(key, row);
    }
    this.renamed = new Map(Object.entries(counterparts).flatMap(([number, other]) => (other === null ? [] : [[keys[other] ?? "", keys[Number(number)] ?? ""]])));
  }

  /** The l2 norms: those of the finite elements, of which the rms is known. */
  norms() {
    const columns = this.steps.length;
    const [rms, nan, inf] = ["rms", "nan", "inf"].map((name) => this.stats.plane(name));
    return Float32Array.from(rms ?? [], (value, at) => {
      const size = this.run.sizes[Math.floor(at / columns)] ?? NaN;
      return value * Math.sqrt(size - (nan?.[at] || 0) - (inf?.[at] || 0));
    });
  }

  /** The position of the first recorded step from a step on, or of the last one. @param {number} step */
  positionFrom(step) {
    const found = this.steps.findIndex((each) => each >= step);
    return found < 0 ? this.steps.length - 1 : found;
  }

  /** The position of the last step up to a step, -1 where there is none. @param {number[]} steps @param {number} step */
  static lastUpTo(steps, step) {
    return steps.findLastIndex((each) => each <= step);
  }

  /**
   * What the heat map shows: the tensors of a family, or the noise of their gradients.
   * @param {string} name
   * @param {string} of the family
   * @returns {{names: string[], steps: number[], value: (row: number, at: number) => number,
   *   broken: (row: number, at: number) => number}} `broken` counts the elements that are not finite
   */
  heat(name, of) {
    const noisy = this.noise?.names.includes(name) ?? false;
    const planes = noisy ? this.noise : this.stats;
    const keys = noisy ? this.noiseKeys : this.keys;
    const rows = keys.map((_, row) => row).filter((row) => keys[row] !== "" && family(keys[row] ?? "") === of);
    return {
      names: rows.map((row) => keys[row] ?? ""),
      steps: planes?.steps ?? [],
      value: (row, at) => planes?.value(rows[row] ?? 0, name, at) ?? NaN,
      broken: (row, at) => (noisy ? 0 : ["nan", "inf"].reduce((sum, each) => sum + (Math.round(this.stats.value(rows[row] ?? 0, each, at)) || 0), 0)),
    };
  }

  /**
   * The cells of a table at a step; columns that are no statistics stay.
   * @param {TableContent} table
   * @param {number} at the position of the step
   * @returns {Cell[][]}
   */
  cells(table, at) {
    return table.columns.map((column, number) => {
      if (!this.names.includes(column.heading)) return table.cells[number] ?? [];
      const families = this.run.groups[column.group] ?? [];
      return table.keys.map((line) => this.cell(this.rowOf(line, families), column.heading, column.kind, at));
    });
  }

  /**
   * The cells of the table of the noise of gradients, at the last measured step up to a step.
   * @param {TableContent} table
   * @param {number} at the position of that step
   * @returns {Cell[][]}
   */
  noiseCells(table, at) {
    const known = (/** @type {number} */ value) => (Number.isNaN(value) ? null : value);
    return table.columns.map((column, number) => {
      if (!this.noise?.names.includes(column.heading)) return table.cells[number] ?? [];
      const whole = column.kind === "count";
      return table.keys.map((_, row) => known(this.noise?.value(row, column.heading, at) ?? NaN)).map((value) => (whole && value !== null ? Math.round(value) : value));
    });
  }

  /** @param {number[]} line @param {string[]} families */
  rowOf(line, families) {
    const rows = line.map((key) => this.rowOfNumber.get(key));
    return families.length === 0 ? rows[0] : rows.find((row) => row !== undefined && families.includes(family(this.keys[row] ?? "")));
  }

  /** @param {number | undefined} row @param {string} name @param {string} kind @param {number} at @returns {Cell} */
  cell(row, name, kind, at) {
    if (row === undefined) return null;
    const value = this.stats.value(row, name, at);
    if (Number.isNaN(value)) return null;
    const size = this.run.sizes[row] ?? null;
    if (kind === "share" && COUNTED.includes(name)) return size ? value / size : null;
    return COUNTED.includes(name) ? Math.round(value) : value;
  }

  /** The names of the columns of the steps. */
  curveNames() {
    return this.run.curves.flatMap((each) => each.columns.map((column) => column.name));
  }

  /** A column of the steps. @param {string} name @returns {{steps: number[], values: (number | null)[]} | undefined} */
  curve(name) {
    const known = this.run.curves.find((each) => each.columns.some((column) => column.name === name));
    const values = known?.columns.find((column) => column.name === name)?.values.map((cell) => (cell === null ? null : numeric(cell)));
    return known === undefined || values === undefined ? undefined : { steps: known.steps, values };
  }

  /**
   * The octaves of a tensor at a step, or at the last one before it that has histograms.
   * @param {string} key @param {number} step
   * @returns {{step: number, octaves: number[]} | null}
   */
  histogram(key, step) {
    const found = this.run.histograms.filter((each) => each.step <= step).at(-1) ?? this.run.histograms[0];
    const octaves = found?.octaves[this.rows.get(key) ?? -1] ?? null;
    return octaves === null || found === undefined ? null : { step: found.step, octaves };
  }
}

/** @param {string} key */
export function family(key) {
  return key.startsWith("slot/") ? "slot" : key.slice(0, key.indexOf("/"));
}

/**
 * Returns the names that are no scope of another one; nor is a further call of such a scope, as `layers#2` is.
 * @param {string[]} names
 * @returns {string[]}
 */
export function innermost(names) {
  const around = new Set(names.flatMap((name) => scopes(name)));
  return names.filter((name) => !around.has(name) && !around.has(name.replace(/#\d+$/, "")));
}

/** @param {string} name */
function scopes(name) {
  const found = [];
  for (let end = name.indexOf("/"); end >= 0 && found.length < MOST_SCOPES; end = name.indexOf("/", end + 1)) found.push(name.slice(0, end));
  return found;
}
