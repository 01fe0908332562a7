/** Charts along depth: gradients and activations, or errors, layer by layer in execution order. */

import { select } from "../parts/address.js";
import { LineChart, lineValues } from "../charts/line_chart.js";

/** Among so few lines, all but the first are dashed, so that equal ones are both seen. */
const MOST_DASHED = 3;

/**
 * Returns the charts of a page along depth.
 * @param {DepthContent[]} depths
 * @param {string[]} keys
 * @returns {LineChart[]}
 */
export function depthCharts(depths, keys) {
  return depths.filter((depth) => depth.names.length > 1 && depth.lines.length > 0).map((depth) => depthChart(depth, keys));
}

/** @param {DepthContent} depth @param {string[]} keys */
function depthChart(depth, keys) {
  const directions = new Set(depth.lines.map((line) => line.direction));
  return new LineChart({
    title: depth.title,
    across: "layer, in execution order",
    up: depth.unit,
    names: depth.names,
    positions: depth.names.map((_, at) => at),
    lines: depth.lines.map((line, at) => ({ label: line.label, values: lineValues(line.values), dashed: directions.size > 1 ? line.direction === "backward" : at > 0 && depth.lines.length <= MOST_DASHED })),
    marks: depth.marks ?? [],
    logarithmic: true,
    named: true,
    own: (key) => ownPlace(depth, keys, key),
    chosen: (line, at) => {
      const key = depth.lines[line]?.keys[at];
      if (key !== undefined) select({ tensor: keys[key] ?? "" });
    },
  });
}

/** @param {DepthContent} depth @param {string[]} keys @param {string} key */
function ownPlace(depth, keys, key) {
  const name = key.slice(key.indexOf("/") + 1);
  const exact = depth.lines.map((line) => line.keys.findIndex((number) => keys[number] === key)).find((at) => at >= 0);
  return exact ?? (key === "" ? -1 : depth.names.indexOf(name));
}
