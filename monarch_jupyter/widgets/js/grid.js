/**
 * A grid of ranks by named dims: where each lies, the heads of rows and columns, and the keys. The view fills
 * the cells. Ranks lie as monarch_jupyter/rendering/grid.py lays them.
 */

import { count, element } from "./dom.js";

/** @typedef {"roomy" | "compact" | "dense"} Density */
/** @typedef {Readonly<Record<string, number>>} Sizes */
/** @typedef {import("./protocol.js").Indices} Indices */

const WRAP = 16;
const DENSE_WRAP = 32;
const ROOMY = 64;
const COMPACT = 256;

/**
 * Rows of ranks, with a label where rows have to be told apart, and the heads of the columns.
 * @param {Readonly<Record<string, number>>} sizes
 * @param {Indices} [indices] of a slice: the index to show for each index of each dim
 * @returns {{columns: string[], rows: {label: string, ranks: number[]}[]}}
 */
export function gridOf(sizes, indices = {}) {
  const shown = (/** @type {string} */ dim, /** @type {number} */ at) => indices[dim]?.[at] ?? at;
  const dims = Object.entries(sizes);
  const last = dims.pop();
  if (last === undefined) {
    return { columns: [], rows: [{ label: "", ranks: [0] }] };
  }
  const [across, width] = last;
  if (dims.length === 0) {
    const wrap = width > COMPACT ? DENSE_WRAP : WRAP;
    if (width <= wrap) {
      return { columns: [], rows: [{ label: "", ranks: range(0, width) }] };
    }
    const rows = [];
    for (let from = 0; from < width; from += wrap) {
      const to = Math.min(from + wrap, width);
      const [first, end] = [shown(across, from), shown(across, to - 1)];
      const label = to - from === 1 ? `${across}=${first}` : `${across}=${first}..${end}`;
      rows.push({ label, ranks: range(from, to) });
    }
    return { columns: [], rows };
  }
  const number = dims.reduce((product, [, size]) => product * size, 1);
  const rows = range(0, number).map((at) => {
    let rest = at;
    const places = [];
    for (const [dim, size] of [...dims].reverse()) {
      places.unshift(`${dim}=${shown(dim, rest % size)}`);
      rest = Math.floor(rest / size);
    }
    return { label: places.join(" "), ranks: range(at * width, (at + 1) * width) };
  });
  return { columns: range(0, width).map((at) => `${across}=${shown(across, at)}`), rows };
}

/**
 * @param {number} from
 * @param {number} to
 */
function range(from, to) {
  return Array.from({ length: to - from }, (_, i) => from + i);
}

/** @param {Sizes} sizes */
export function ranksOf(sizes) {
  return Object.values(sizes).reduce((product, size) => product * size, 1);
}

/**
 * How much room a cell has.
 * @param {Sizes} sizes
 * @returns {Density}
 */
export function densityOf(sizes) {
  const ranks = ranksOf(sizes);
  return ranks > COMPACT ? "dense" : ranks > ROOMY ? "compact" : "roomy";
}

/**
 * The coordinates of a rank.
 * @param {number} rank
 * @param {Sizes} sizes
 * @returns {Record<string, number>}
 */
export function pointOf(rank, sizes) {
  /** @type {Record<string, number>} */
  const point = {};
  let stride = ranksOf(sizes);
  for (const [dim, size] of Object.entries(sizes)) {
    stride /= size;
    point[dim] = Math.floor(rank / stride) % size;
  }
  return point;
}

/**
 * The elements of a grid, one of which can be reached by Tab and the others from there by arrow keys. A click, Enter or
 * space chooses a rank, the same again or Escape none.
 */
export class RankGrid {
  /**
   * @param {string} name
   * @param {Sizes} sizes
   * @param {Density} density
   * @param {(rank: number, underHead: boolean) => HTMLElement} cell `underHead`: whether a column's head says its place already
   * @param {() => void} onChoice another rank was chosen, or none
   * @param {Indices} [indices] as in `gridOf`
   */
  constructor(name, sizes, density, cell, onChoice, indices = {}) {
    /** @type {number | null} */
    this.chosen = null;
    this._onChoice = onChoice;
    /** @type {Map<number, HTMLElement>} */
    this._cells = new Map();
    const dims = Object.keys(sizes);
    const by = dims.length > 0 ? ` by ${dims.join(" and ")}` : "";
    this.node = element("div", `mx-grid mx-${density}`, {
      role: "grid",
      "aria-label": `${name}: ${count(ranksOf(sizes), "rank")}${by}`,
      // Arrow keys move in the grid, not from cell to cell of the notebook.
      "data-lm-suppress-shortcuts": "true",
    });
    const layout = gridOf(sizes, indices);
    const underHead = layout.columns.length > 0;
    if (underHead) {
      this.node.append(headOf(dims, layout.columns, density));
    }
    this._places = layout.rows.map(({ ranks }) => ranks);
    const longest = Math.max(...layout.rows.map(({ label }) => label.length));
    this.node.style.setProperty("--mx-label", `${Math.ceil(longest * 0.6) + 1}em`);
    for (const { label, ranks } of layout.rows) {
      const row = element("div", "mx-row", { role: "row" });
      if (label) {
        row.append(element("span", "mx-label", { role: "rowheader" }, label));
      }
      for (const rank of ranks) {
        const made = cell(rank, underHead);
        made.dataset.rank = String(rank);
        this._cells.set(rank, made);
        row.append(made);
      }
      this.node.append(row);
    }
    this._entry = this._cells.get(0);
    this._entry?.setAttribute("tabindex", "0");
    this.node.addEventListener("keydown", (event) => this._onKey(event));
    this.node.addEventListener("click", (event) => {
      const rank = rankOf(event.target);
      if (rank !== null) {
        this.focus(rank);
        this.choose(rank);
      }
    });
  }

  /** @param {number} rank */
  focus(rank) {
    const node = this._cells.get(rank);
    if (node !== undefined) {
      this._entry?.setAttribute("tabindex", "-1");
      this._entry = node;
      node.tabIndex = 0;
      node.focus();
    }
  }

  /**
   * That rank; the one that is chosen no more.
   * @param {number} rank
   */
  choose(rank) {
    this._mark("false");
    this.chosen = rank === this.chosen ? null : rank;
    this._mark("true");
    this._onChoice();
  }

  /** @param {string} selected */
  _mark(selected) {
    if (this.chosen !== null) {
      this._cells.get(this.chosen)?.setAttribute("aria-selected", selected);
    }
  }

  /** @param {KeyboardEvent} event */
  _onKey(event) {
    const rank = rankOf(event.target);
    if (rank === null || event.altKey || event.metaKey) {
      return;
    }
    const y = this._places.findIndex((ranks) => ranks.includes(rank));
    const x = this._places[y]?.indexOf(rank) ?? 0;
    const last = this._places.length - 1;
    const to = (/** @type {number} */ line, /** @type {number} */ place) => {
      const ranks = this._places[Math.max(0, Math.min(line, last))] ?? [rank];
      return ranks[Math.max(0, Math.min(place, ranks.length - 1))] ?? rank;
    };
    /** @type {Readonly<Record<string, () => number>>} */
    const goes = {
      ArrowLeft: () => to(y, x - 1),
      ArrowRight: () => to(y, x + 1),
      ArrowUp: () => to(y - 1, x),
      ArrowDown: () => to(y + 1, x),
      Home: () => to(event.ctrlKey ? 0 : y, 0),
      End: () => to(event.ctrlKey ? last : y, Infinity),
    };
    const go = goes[event.key];
    if (go !== undefined) {
      this.focus(go());
    } else if (event.key === "Enter" || event.key === " ") {
      this.choose(rank);
    } else if (event.key === "Escape" && this.chosen !== null) {
      this.choose(this.chosen);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

/**
 * @param {readonly string[]} dims
 * @param {readonly string[]} columns
 * @param {Density} density
 */
function headOf(dims, columns, density) {
  const row = element("div", "mx-row", { role: "row" });
  row.append(element("span", "mx-label", { role: "columnheader" }, dims.slice(0, -1).join(" ")));
  for (const name of columns) {
    const head = { role: "columnheader", "aria-label": name, title: name };
    row.append(element("span", "mx-column", head, density === "dense" ? name.replace(/^.*=/, "") : name));
  }
  return row;
}

/**
 * The rank whose cell this is, or is in.
 * @param {EventTarget | null} target
 */
export function rankOf(target) {
  const node = target instanceof Element ? target.closest("[role=gridcell]") : null;
  return node instanceof HTMLElement ? Number(node.dataset.rank) : null;
}
