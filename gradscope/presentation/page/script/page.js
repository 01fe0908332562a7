/** Puts the page together: charts, tables, tree, one tensor, the search, and the theme. */

import { select, selected, whenSelected } from "./parts/address.js";
import { BlockTree } from "./views/block_tree.js";
import { readContent } from "./data/content.js";
import { depthCharts } from "./views/depth_view.js";
import { choice, element, section } from "./parts/elements.js";
import { LineChart } from "./charts/line_chart.js";
import { RunData } from "./data/run_data.js";
import { HEAT } from "./views/run_heat.js";
import { RunView } from "./views/run_view.js";
import { TensorView } from "./views/tensor_view.js";
import { VirtualTable } from "./tables/virtual_table.js";

const TYPING_PAUSE_MS = 120;
/** The longest wait for the first charts. */
const MOST_PAINTING_MS = 100;
/** The width of a chart on A4 or letter paper, with margins. */
const PAPER_PIXELS = 660;
/** @type {Record<string, string>} the names of sections whose heading is none, or longer */
const NAMES = { summary: "Summary", overview: "Overview", tree: "Layers as a tree" };

async function start() {
  const main = document.querySelector("main");
  const encoded = document.getElementById("content")?.textContent ?? "";
  if (main === null) return;
  if (typeof DecompressionStream === "undefined") {
    main.append(element("p", { class: "note" }, "This browser cannot decompress data (DecompressionStream), so that only the summary is shown."));
    return;
  }
  const { content, packed } = await readContent(encoded);
  await build(content, packed, main);
  document.documentElement.dataset["ready"] = "true";
}

/** @param {Content} content @param {Uint8Array} packed @param {HTMLElement} main */
async function build(content, packed, main) {
  const overview = document.getElementById("overview") ?? main.appendChild(element("section"));
  const charts = depthCharts(content.depth, content.keys);
  if (charts.length > 0) {
    const depth = section("depth", "Along depth");
    depth.append(...charts.map((chart) => chart.box));
    overview.before(depth);
  }
  const run = content.runs === undefined ? null : new RunView(content.runs.map((each) => new RunData(each, packed, content.keys)), content);
  if (run !== null) overview.before(run.curveSection);
  await painted();
  if (run !== null) overview.before(...run.belowCurves(content));
  const tables = run === null ? tableSection(content, main) : run.allTables();
  const tree = content.blocks === undefined || content.blocks.names.length === 0 ? null : new BlockTree(content.blocks, content.keys, run === null ? "" : `, at step ${run.runs[0]?.steps.at(-1)}`);
  if (tree !== null) main.append(tree.box);
  const tensor = new TensorView(content);
  document.body.append(tensor.box);

  const search = element("input", { type: "search", placeholder: "Search names, or a glob like *conv*", "aria-label": "Search names", "aria-keyshortcuts": "/" });
  const allCharts = () => [...charts, ...(run?.allCharts() ?? []), ...own];
  header(search, () => allCharts().forEach((chart) => chart.draw(true)), run);

  /** @type {LineChart[]} those of the selected tensor */
  let own = [];
  const follow = (/** @type {Set<string>} */ changed) => {
    if (["step", "from", "to", "of", ...HEAT].some((name) => changed.has(name))) run?.address();
    if ([...changed].some((name) => /^(sort|columns)\./.test(name))) tables.forEach((table) => table.followAddress());
    if (changed.has("colour")) tree?.followColour();
    if (changed.has("search")) {
      const query = selected("search");
      if (search.value !== query) search.value = query;
      [...tables, ...(tree === null ? [] : [tree])].forEach((each) => each.filter(query));
    }
    if (changed.has("tensor") || (run !== null && (changed.has("step") || changed.has("from") || changed.has("to")))) {
      const known = run?.tensor(selected("tensor"));
      own = known?.charts ?? [];
      tensor.show(selected("tensor"), known?.elements ?? []);
      document.body.classList.toggle("has-tensor", !tensor.box.hidden);
      tables.forEach((table) => table.drawRows());
      allCharts().forEach((chart) => chart.follow());
    }
  };
  whenSelected(follow);
  follow(new Set(["search", "tensor"]));

  printing(tables, allCharts, run);
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => select({ search: search.value }, { quiet: true }), TYPING_PAUSE_MS);
  });
  const closeMenus = (/** @type {EventTarget | null} */ but) => {
    const open = [...document.querySelectorAll("details.menu[open]")].filter((menu) => !(but instanceof Node && menu.contains(but)));
    open.forEach((menu) => menu.removeAttribute("open"));
    return open.length > 0;
  };
  addEventListener("pointerdown", (event) => closeMenus(event.target));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && closeMenus(null)) return;
    if (event.key === "/" && !typing(event.target)) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape") {
      if (event.target === search && search.value !== "") search.value = "";
      if (event.target === search) select({ search: search.value }, { quiet: true });
      if (event.target === search) search.blur();
      else if (selected("tensor") !== "") select({ tensor: "" });
    }
  });
}

/** Waits until what there is has been painted; a page that is not shown paints nothing. */
function painted() {
  return new Promise((done) => {
    requestAnimationFrame(() => setTimeout(done));
    setTimeout(done, MOST_PAINTING_MS);
  });
}

/**
 * Prints on white paper, charts in its width, and tables from their first row on.
 * @param {VirtualTable[]} tables @param {() => LineChart[]} charts @param {RunView | null} run
 */
function printing(tables, charts, run) {
  const root = document.documentElement.dataset;
  let theme = root["theme"];
  const draw = (/** @type {number | undefined} */ width) => {
    charts().forEach((chart) => chart.draw(true, width));
    run?.heat.draw();
    tables.forEach((table) => table.print(width !== undefined));
  };
  addEventListener("beforeprint", () => {
    theme = root["theme"];
    root["theme"] = "light";
    draw(PAPER_PIXELS);
  });
  addEventListener("afterprint", () => {
    if (theme === undefined) delete root["theme"];
    else root["theme"] = theme;
    draw(undefined);
  });
}

/** @param {EventTarget | null} target */
function typing(target) {
  return target instanceof HTMLInputElement && ["search", "number", "text"].includes(target.type);
}

/**
 * Adds the tables, of which one set is shown where there are several candidates.
 * @param {Content} content @param {HTMLElement} main
 * @returns {VirtualTable[]}
 */
function tableSection(content, main) {
  const sets = content.sets.map((set) => ({ name: set.name, tables: set.tables.map((table) => new VirtualTable(table, content.keys)) }));
  const boxes = element("div", {});
  const show = (/** @type {string} */ name) => {
    const set = sets.find((each) => each.name === name) ?? sets[0];
    boxes.replaceChildren(...(set?.tables ?? []).map((table) => table.box));
    set?.tables.forEach((table) => table.drawRows());
  };
  const { box, list } = choice("of", sets.map((set) => set.name), (name) => select({ of: name }, { quiet: true }));
  const made = section("tables", "Tables", ...(sets.length > 1 ? [box] : []));
  made.append(boxes);
  main.append(made);
  const follow = () => {
    if (selected("of") !== "") list.value = selected("of");
    show(list.value);
  };
  whenSelected((changed) => {
    if (changed.has("of")) follow();
  });
  follow();
  return sets.flatMap((set) => set.tables);
}

/** @param {HTMLElement} search @param {() => void} redraw @param {RunView | null} run */
function header(search, redraw, run) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = element("button", {
    type: "button",
    click: () => {
      const now = document.documentElement.dataset["theme"] ?? (dark.matches ? "dark" : "light");
      document.documentElement.dataset["theme"] = now === "dark" ? "light" : "dark";
      redraw();
      run?.heat.draw();
    },
  }, "Light or dark");
  dark.addEventListener("change", redraw);
  const sections = [...document.querySelectorAll("main section[id]")].filter((each) => each.childElementCount > 0);
  const links = sections.map((each) => {
    const heading = NAMES[each.id] ?? each.querySelector("h2")?.textContent ?? "";
    return element("button", { type: "button", class: "jump", click: () => each.scrollIntoView() }, heading);
  });
  const bar = document.querySelector("header");
  bar?.append(element("nav", { "aria-label": "Page" }, ...links), search, theme);
  // What is jumped to begins below the bar, which is of several lines where it is narrow.
  if (bar !== null) new ResizeObserver(() => document.documentElement.style.setProperty("--bar", `${bar.offsetHeight}px`)).observe(bar);
}

void start();
