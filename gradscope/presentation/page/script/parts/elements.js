/** Makes elements; text is only ever a text node. */

/**
 * Returns a new element.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string | number | boolean | ((event: any) => void)>} [attributes] functions are listeners
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/**
 * Returns a section of the page with its heading and a line of controls.
 * @param {string} id
 * @param {string} title
 * @param {...Node} controls
 * @returns {HTMLElement}
 */
export function section(id, title, ...controls) {
  const head = element("div", { class: "head" }, element("h2", {}, title), ...controls);
  return element("section", { id, "aria-label": title }, head);
}

/**
 * Returns a list of choices with its label.
 * @param {string} label
 * @param {string[]} choices
 * @param {(choice: string) => void} chosen
 * @returns {{box: HTMLElement, list: HTMLSelectElement}}
 */
export function choice(label, choices, chosen) {
  const list = element("select", { change: () => chosen(list.value) });
  list.append(...choices.map((each) => element("option", { value: each }, each)));
  return { box: element("label", {}, `${label} `, list), list };
}

/**
 * Returns the value of a colour of the theme.
 * @param {string} name
 * @returns {string}
 */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const LINE_COLOURS = 8;

/**
 * Returns the colour of a line of a chart.
 * @param {number} number
 * @returns {string}
 */
export function lineColour(number) {
  return colour(`line-${number % LINE_COLOURS}`);
}
