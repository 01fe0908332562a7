/** What is selected is in the address, so that a colleague gets a link: `#tensor=KEY&step=N&search=TEXT`. */

/** @type {Set<(changed: Set<string>) => void>} */
const watchers = new Set();
let before = parameters();

function parameters() {
  return new URLSearchParams(location.hash.slice(1));
}

/**
 * Returns a part of the address; "" where it has none.
 * @param {string} name
 * @returns {string}
 */
export function selected(name) {
  return parameters().get(name) ?? "";
}

/**
 * Changes parts of the address; "" takes a part out.
 * @param {Record<string, string>} parts
 * @param {{quiet?: boolean}} how quiet adds no entry to the history of the browser
 */
export function select(parts, how = {}) {
  const found = parameters();
  for (const [name, value] of Object.entries(parts)) {
    if (value === "") found.delete(name);
    else found.set(name, value);
  }
  const hash = found.toString().replaceAll("%2F", "/");
  if (hash === location.hash.slice(1)) return;
  const address = hash === "" ? location.pathname + location.search : `#${hash}`;
  try {
    if (how.quiet) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
  } catch {
    // In a notebook's frame there is no address to change, only the part of it that is the page's own.
    location.hash = hash;
    return;
  }
  announce();
}

/**
 * Returns the address at which a tensor is selected, and nothing else changes.
 * @param {string} key
 * @returns {string}
 */
export function tensorAddress(key) {
  const found = parameters();
  found.set("tensor", key);
  return `#${found.toString().replaceAll("%2F", "/")}`;
}

/**
 * Calls a function with the names of parts of the address that changed.
 * @param {(changed: Set<string>) => void} watcher
 */
export function whenSelected(watcher) {
  watchers.add(watcher);
}

function announce() {
  const now = parameters();
  const names = new Set([...before.keys(), ...now.keys()]);
  const changed = new Set([...names].filter((name) => before.get(name) !== now.get(name)));
  before = now;
  if (changed.size > 0) watchers.forEach((watcher) => watcher(changed));
}

addEventListener("popstate", announce);
addEventListener("hashchange", announce);
