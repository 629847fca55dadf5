/** Elements and their texts. Writes only changes: screen readers would announce an equal text again. */

/** @typedef {import("./protocol.js").Row} Row */

/** @type {Readonly<Record<string, string>>} */
export const ICONS = { starting: "◌", idle: "○", busy: "●", paused: "◫", suspended: "◧", ready: "●", failed: "✕", stopped: "□" };

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {string} [className]
 * @param {Readonly<Record<string, string>>} [attributes]
 * @param {string} [content]
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, className = "", attributes = {}, content = "") {
  const node = document.createElement(tag);
  if (className) {
    node.className = className;
  }
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  node.textContent = content;
  return node;
}

/**
 * @param {string} label
 * @param {() => void} press
 * @param {string} [className]
 * @returns {HTMLButtonElement}
 */
export function button(label, press, className = "mx-button") {
  const node = element("button", className, { type: "button" }, label);
  node.addEventListener("click", press);
  return node;
}

/**
 * @param {Element} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/**
 * @param {Element} node
 * @param {string} name
 * @param {string} value
 */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

/**
 * "gpus=3", or "" for the one rank of a mesh without dims.
 * @param {Readonly<Record<string, number>>} point
 */
export function pointText(point) {
  return Object.entries(point)
    .map(([dim, at]) => `${dim}=${at}`)
    .join(" ");
}

/**
 * "{gpus: 8}"
 * @param {Readonly<Record<string, number>>} sizes
 */
export function extentText(sizes) {
  return `{${Object.entries(sizes)
    .map(([dim, size]) => `${dim}: ${size}`)
    .join(", ")}}`;
}

/**
 * Whether an endpoint is under way there, or stands at a breakpoint.
 * @param {Row} row
 */
export function isAtWork(row) {
  return row.state === "busy" || row.state === "paused" || row.state === "suspended";
}

/**
 * "busy in Trainer.step"
 * @param {Row} row
 */
export function doing(row) {
  if (row.state === "failed" && row.failure !== null) {
    return `failed: ${row.failure}`;
  }
  if (row.state === "starting" && row.failure !== null) {
    return `starting again: ${row.failure}`;
  }
  if (row.state === "paused" && row.where !== null) {
    return `paused in ${row.where}`;
  }
  const endpoint = endpointText(row);
  return isAtWork(row) && endpoint ? `${row.state} in ${endpoint}` : row.state;
}

const OF_TRAINING = /^elastic_(look|report|load_checkpoint|offer|take|run)$/;

/**
 * "Trainer.step", "the training of Trainer", or "" while nothing runs.
 * @param {Row} row
 */
export function endpointText(row) {
  if (row.endpoint === null) {
    return "";
  }
  if (row.actor === null) {
    return row.endpoint;
  }
  if (OF_TRAINING.test(row.endpoint)) {
    return `the training of ${row.actor}`;
  }
  // An actor of the runtime has a label with a space, such as "the map": see `endpoint_text`.
  return row.actor.includes(" ") ? row.actor : `${row.actor}.${row.endpoint}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 10) {
    return `${Math.max(0, seconds).toFixed(1)} s`;
  }
  const whole = Math.round(seconds);
  if (whole < 60) {
    return `${whole} s`;
  }
  if (whole < 3600) {
    return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  }
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/**
 * "1 rank", "1,024 ranks"
 * @param {number} number
 * @param {string} noun
 */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/**
 * "JupyterLab's debugger is on gpus=3"; "" while it is on none of its ranks
 * @param {import("./protocol.js").Mesh} mesh
 */
export function debuggedText(mesh) {
  const [first, ...more] = mesh.debugged;
  const row = mesh.rows.find(({ rank }) => rank === first);
  if (row === undefined) {
    return "";
  }
  const others = more.length > 0 ? ` and ${more.length} more` : "";
  return `JupyterLab's debugger is on ${pointText(row.point) || "its rank"}${others}`;
}

/**
 * Have the browser save a text as a JSON file.
 * @param {string} name
 * @param {string} text
 */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = element("a", "", { href: url, download: name });
  link.click();
  URL.revokeObjectURL(url);
}
