/** What is selected is in the address, so that a colleague gets a link: `#tensor=KEY&step=N&search=TEXT`. */

/** @type {Set<(changed: Set<string>) => void>} */
const watchers = new Set();
let now = fromAddress();

function fromAddress() {
  return new URLSearchParams(location.hash.slice(1));
}

/**
 * Returns a part of the address; "" where it has none.
 * @param {string} name
 * @returns {string}
 */
export function selected(name) {
  return now.get(name) ?? "";
}

/**
 * Changes parts of the address; "" takes a part out.
 * @param {Record<string, string>} parts
 * @param {{quiet?: boolean}} how quiet adds no entry to the history of the browser
 */
export function select(parts, how = {}) {
  const changed = new URLSearchParams(now);
  for (const [name, value] of Object.entries(parts)) {
    if (value === "") changed.delete(name);
    else changed.set(name, value);
  }
  const hash = written(changed);
  if (hash === written(now)) return;
  try {
    const address = hash === "" ? location.pathname + location.search : `#${hash}`;
    if (how.quiet) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
  } catch {
    // The frame of a notebook has no address of its own; what is selected is only remembered there.
  }
  become(changed);
}

/**
 * Returns the address at which a tensor is selected, and nothing else changes.
 * @param {string} key
 * @returns {string}
 */
export function tensorAddress(key) {
  const changed = new URLSearchParams(now);
  changed.set("tensor", key);
  return `#${written(changed)}`;
}

/**
 * Calls a function with the names of parts of the address that changed.
 * @param {(changed: Set<string>) => void} watcher
 */
export function whenSelected(watcher) {
  watchers.add(watcher);
}

/** @param {URLSearchParams} parts */
function written(parts) {
  return parts.toString().replaceAll("%2F", "/");
}

/** @param {URLSearchParams} parts */
function become(parts) {
  const names = new Set([...now.keys(), ...parts.keys()]);
  const changed = new Set([...names].filter((name) => now.get(name) !== parts.get(name)));
  now = parts;
  if (changed.size > 0) watchers.forEach((watcher) => watcher(changed));
}

addEventListener("popstate", () => become(fromAddress()));
addEventListener("hashchange", () => become(fromAddress()));

// Where the page has no address, a link to a part of it would lead to the document around it.
document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a[href^='#']") : null;
  if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  select(Object.fromEntries(new URLSearchParams(link.getAttribute("href")?.slice(1))));
});
