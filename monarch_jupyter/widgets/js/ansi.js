/** Text with terminal colours as elements. The text is never parsed as markup. */

import { element } from "./dom.js";

// eslint-disable-next-line no-control-regex -- this character begins a colour
const CODE = /\u001b\[([0-9;:]*)m/g;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/** @typedef {{bold: boolean, faint: boolean, italic: boolean, underline: boolean, colour: string, ground: string}} Style */
/** @type {Style} */
const PLAIN = { bold: false, faint: false, italic: false, underline: false, colour: "", ground: "" };

/**
 * @param {string} text
 * @returns {Node[]}
 */
export function coloured(text) {
  /** @type {Node[]} */
  const nodes = [];
  let style = PLAIN;
  let from = 0;
  for (const found of text.matchAll(CODE)) {
    add(nodes, text.slice(from, found.index), style);
    style = after(style, found[1] ?? "");
    from = found.index + found[0].length;
  }
  add(nodes, text.slice(from), style);
  return nodes;
}

/**
 * @param {Node[]} nodes
 * @param {string} text
 * @param {Style} style
 */
function add(nodes, text, style) {
  if (text === "") {
    return;
  }
  const css = [
    style.bold ? "font-weight: bold" : "",
    style.faint ? "opacity: 0.7" : "",
    style.italic ? "font-style: italic" : "",
    style.underline ? "text-decoration: underline" : "",
    style.colour ? `color: ${style.colour}` : "",
    style.ground ? `background: ${style.ground}` : "",
  ].filter(Boolean);
  if (css.length === 0) {
    nodes.push(document.createTextNode(text));
    return;
  }
  const node = element("span", "", {}, text);
  node.style.cssText = css.join("; ");
  nodes.push(node);
}

/**
 * @param {Style} before
 * @param {string} codes
 * @returns {Style}
 */
function after(before, codes) {
  let style = before;
  const rest = codes === "" ? [0] : codes.split(/[;:]/).map(Number);
  while (rest.length > 0) {
    const code = rest.shift() ?? 0;
    if (code === 0) {
      style = PLAIN;
    } else if (code === 1) {
      style = { ...style, bold: true };
    } else if (code === 2) {
      style = { ...style, faint: true };
    } else if (code === 3) {
      style = { ...style, italic: true };
    } else if (code === 4) {
      style = { ...style, underline: true };
    } else if (code === 22) {
      style = { ...style, bold: false, faint: false };
    } else if (code === 23) {
      style = { ...style, italic: false };
    } else if (code === 24) {
      style = { ...style, underline: false };
    } else if (code === 38 || code === 48) {
      const colour = wide(rest);
      style = code === 38 ? { ...style, colour } : { ...style, ground: colour };
    } else if (code === 39) {
      style = { ...style, colour: "" };
    } else if (code === 49) {
      style = { ...style, ground: "" };
    } else if (code >= 30 && code <= 37) {
      style = { ...style, colour: named(code - 30, "") };
    } else if (code >= 90 && code <= 97) {
      style = { ...style, colour: named(code - 90, "-intense") };
    } else if (code >= 40 && code <= 47) {
      style = { ...style, ground: named(code - 40, "") };
    } else if (code >= 100 && code <= 107) {
      style = { ...style, ground: named(code - 100, "-intense") };
    }
  }
  return style;
}

/**
 * The notebook theme's colour of that number.
 * @param {number} number
 * @param {string} strength
 */
function named(number, strength) {
  const name = COLOURS[number] ?? "black";
  return `var(--jp-ansi-${name}${strength}, ${name})`;
}

/**
 * One of 256 or 16 million colours, of which the codes are taken.
 * @param {number[]} rest
 */
function wide(rest) {
  const kind = rest.shift();
  if (kind === 2) {
    const [red = 0, green = 0, blue = 0] = rest.splice(0, 3);
    return `rgb(${red}, ${green}, ${blue})`;
  }
  const number = rest.shift() ?? 0;
  if (number < 16) {
    return named(number % 8, number < 8 ? "" : "-intense");
  }
  if (number >= 232) {
    const grey = 8 + 10 * (number - 232);
    return `rgb(${grey}, ${grey}, ${grey})`;
  }
  const level = (/** @type {number} */ step) => (step === 0 ? 0 : 55 + 40 * step);
  const at = number - 16;
  return `rgb(${level(Math.floor(at / 36))}, ${level(Math.floor(at / 6) % 6)}, ${level(at % 6)})`;
}
