/** The heat map of a run with its choices: of which run, which family and which statistic; they are in the address. */

import { select, selected } from "../parts/address.js";
import { choice, section } from "../parts/elements.js";
import { HeatMap } from "../charts/heat_map.js";
import { RunData } from "../data/run_data.js";

/** The statistics of the noise of gradients, which parameters' gradients alone have. */
export const NOISE = ["noise_scale", "gsnr"];
/** The parts of the address that choose what is shown. */
export const HEAT = ["heat", "statistic", "heat_run"];

export class RunHeat {
  /** @param {RunData[]} runs */
  constructor(runs) {
    this.runs = runs;
    this.map = new HeatMap((key, step) => select({ tensor: key, step: String(step) }));
    const families = [...new Set(runs.flatMap((run) => run.families))];
    this.noisy = NOISE.filter((name) => runs.some((run) => run.noise?.names.includes(name)));
    const names = [...new Set(runs.flatMap((run) => run.names)), ...this.noisy];
    const made = (/** @type {string} */ part, /** @type {string} */ label, /** @type {string[]} */ choices) => choice(label, choices, (name) => select({ [part]: name }, { quiet: true }));
    this.family = made("heat", "of", families);
    this.statistic = made("statistic", "statistic", names);
    this.run = made("heat_run", "run", runs.map((run) => run.name));
    this.usualFamily = families.includes("activation_grad") ? "activation_grad" : (families[0] ?? "");
    this.section = section("heat", "Layers against steps", this.family.box, this.statistic.box, ...(runs.length > 1 ? [this.run.box] : []));
    this.section.append(this.map.box);
    this.shown = "";
  }

  /** Follows the address, and shows the steps of a range. @param {number} from @param {number} to */
  follow(from, to) {
    const statistic = chosen(this.statistic.list, "statistic", "rms");
    const of = this.noisy.includes(statistic) ? "param_grad" : chosen(this.family.list, "heat", this.usualFamily);
    this.family.list.value = of;
    const name = chosen(this.run.list, "heat_run", this.runs[0]?.name ?? "");
    const run = this.runs.find((each) => each.name === name);
    const shown = [name, of, statistic, from, to].join("\n");
    if (run === undefined || shown === this.shown) return;
    this.shown = shown;
    const found = run.heat(statistic, of);
    const columns = found.steps.map((_, at) => at).filter((at) => from <= (found.steps[at] ?? 0) && (found.steps[at] ?? 0) <= to);
    this.map.show({ title: `${of} ${statistic}`, names: found.names, steps: columns.map((at) => found.steps[at] ?? 0), values: (row, column) => found.value(row, columns[column] ?? 0), broken: (row, column) => found.broken(row, columns[column] ?? 0) });
  }

  /** Draws the same again, in the colours of the theme. */
  draw() {
    this.map.draw();
  }
}

/** Chooses what the address says, or what is usual. @param {HTMLSelectElement} list @param {string} part @param {string} usual */
function chosen(list, part, usual) {
  list.value = [...list.options].some((option) => option.value === selected(part)) ? selected(part) : usual;
  return list.value;
}
