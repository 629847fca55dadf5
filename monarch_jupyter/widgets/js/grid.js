/**
 * A grid of ranks by named dims: where each lies, the heads of rows and columns, and the keys. The view fills
 * the cells. Ranks lie as monarch_jupyter/rendering/grid.py lays them.
 */

import { count, element, setText } from "./dom.js";
import { fitOf, shortLabel } from "./tiles.js";

/** @typedef {import("./tiles.js").Fit} Fit */
/** @typedef {Readonly<Record<string, number>>} Sizes */
/** @typedef {import("./protocol.js").Indices} Indices */

const WRAP = 16;
const DENSE_WRAP = 32;
const DENSEST_WRAP = 64;
const LARGE = 256;
const LARGEST = 1024;
/** Pixels, until the page has laid out the grid. */
const FIRST_ROOM = 960;

/**
 * Rows of ranks, with a label where rows have to be told apart, and the heads of the columns.
 * @param {Readonly<Record<string, number>>} sizes
 * @param {Indices} [indices] of a slice: the index to show for each index of each dim
 * @param {boolean} [joins] whether so many short rows that they need scrolling are put side by side
 * @returns {{columns: string[], rows: {label: string, ranks: number[]}[], beside: number}} `beside`: so many rows are one
 */
export function gridOf(sizes, indices = {}, joins = false) {
  const shown = (/** @type {string} */ dim, /** @type {number} */ at) => indices[dim]?.[at] ?? at;
  const dims = Object.entries(sizes);
  const last = dims.pop();
  if (last === undefined) {
    return { columns: [], rows: [{ label: "", ranks: [0] }], beside: 1 };
  }
  const [across, width] = last;
  const wrap = wrapOf(ranksOf(sizes));
  if (dims.length === 0) {
    if (width <= wrap) {
      return { columns: [], rows: [{ label: "", ranks: range(0, width) }], beside: 1 };
    }
    const rows = [];
    for (let from = 0; from < width; from += wrap) {
      const to = Math.min(from + wrap, width);
      const [first, end] = [shown(across, from), shown(across, to - 1)];
      const label = to - from === 1 ? `${across}=${first}` : `${across}=${first}..${end}`;
      rows.push({ label, ranks: range(from, to) });
    }
    return { columns: [], rows, beside: 1 };
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
  const columns = range(0, width).map((at) => `${across}=${shown(across, at)}`);
  const [down, size] = dims[dims.length - 1] ?? ["", 1];
  const beside = Math.min(size, Math.floor(wrap / width));
  // Rows of fewer ranks lie in blocks instead, whose columns keep their heads: see `fitOf`.
  if (!joins || ranksOf(sizes) <= LARGEST || number <= wrap || beside < 2) {
    return { columns, rows, beside: 1 };
  }
  const joined = [];
  for (let at = 0; at < number; at += size) {
    for (let from = 0; from < size; from += beside) {
      const to = Math.min(from + beside, size);
      const label = rows[at + from]?.label ?? "";
      const end = to - from === 1 ? "" : `..${shown(down, to - 1)}`;
      joined.push({ label: label + end, ranks: range((at + from) * width, (at + to) * width) });
    }
  }
  const heads = range(0, beside).flatMap((at) => columns.map((column) => `${down}=+${at} ${column}`));
  return { columns: heads, rows: joined, beside };
}

/**
 * The most ranks in a row of a mesh with so many.
 * @param {number} ranks
 */
function wrapOf(ranks) {
  return ranks > LARGEST ? DENSEST_WRAP : ranks > LARGE ? DENSE_WRAP : WRAP;
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
 * space chooses a rank, the same again or Escape none. Tiles take the width that the page gives the grid.
 */
export class RankGrid {
  /**
   * @param {string} name
   * @param {Sizes} sizes
   * @param {(rank: number, underHead: boolean) => HTMLElement} cell `underHead`: whether a column's head says its place already
   * @param {() => void} onChoice another rank was chosen, or none
   * @param {{indices?: Indices, joins?: boolean, least?: number, most?: number, onFit?: (fit: Fit) => void}} [options]
   *   `indices` and `joins` as in `gridOf`; limits of a tile's width in pixels; `onFit` is called with each new size of
   *   tiles, the first one too
   */
  constructor(name, sizes, cell, onChoice, options = {}) {
    /** @type {number | null} */
    this.chosen = null;
    this._onChoice = onChoice;
    this._onFit = options.onFit ?? (() => undefined);
    /** @type {Map<number, HTMLElement>} */
    this._cells = new Map();
    const dims = Object.keys(sizes);
    const by = dims.length > 0 ? ` by ${dims.join(" and ")}` : "";
    this.node = element("div", "mx-grid", {
      role: "grid",
      "aria-label": `${name}: ${count(ranksOf(sizes), "rank")}${by}`,
      // Arrow keys move in the grid, not from cell to cell of the notebook.
      "data-lm-suppress-shortcuts": "true",
    });
    const layout = gridOf(sizes, options.indices ?? {}, options.joins ?? false);
    const underHead = layout.columns.length > 0;
    this._places = layout.rows.map(({ ranks }) => ranks);
    this._labels = layout.rows.map(({ label }) => label);
    const columns = Math.max(...this._places.map((ranks) => ranks.length));
    const isWrapped = !underHead && layout.rows.length > 1;
    const shown = (/** @type {number} */ at) => options.indices?.[dims[0] ?? ""]?.[at] ?? at;
    // The rows of a dim that was broken name their first rank; the heads count on from there.
    const headName = (/** @type {number} */ at) => (isWrapped ? `+${at}` : `${dims[0] ?? ""}=${shown(at)}`);
    /** Whether heads are needed only where tiles are too small for coordinates. */
    this._isSingle = !underHead && !isWrapped;
    this._names = underHead ? layout.columns : dims.length > 0 ? range(0, columns).map(headName) : [];
    this._layout = {
      columns,
      ranks: ranksOf(sizes),
      labels: this._labels,
      heads: this._names,
      // Values have texts of their own width.
      folds: underHead && options.least === undefined,
      ...(options.least === undefined ? {} : { least: options.least }),
      ...(options.most === undefined ? {} : { most: options.most }),
    };
    /** @type {HTMLElement[]} */
    this._heads = [];
    /** @type {HTMLElement | null} */
    this._headRow = null;
    if (this._names.length > 0) {
      this._addHeads(isWrapped ? "" : dims.slice(0, -1).join(" "));
    }
    /** @type {HTMLElement[]} */
    this._rowHeads = [];
    /** @type {HTMLElement[]} */
    this._lines = [];
    /** @type {HTMLElement[]} the heads again, of each block of rows but the first */
    this._copies = [];
    this._labels.forEach((label, y) => {
      const row = element("div", "mx-row", { role: "row" });
      if (label) {
        const head = element("span", "mx-label", { role: "rowheader", "aria-label": label, title: label });
        head.append(element("span", "mx-tick"));
        this._rowHeads.push(head);
        row.append(head);
      }
      for (const rank of this._places[y] ?? []) {
        const made = cell(rank, underHead);
        made.dataset.rank = String(rank);
        this._cells.set(rank, made);
        row.append(made);
      }
      this._lines.push(row);
      this.node.append(row);
    });
    this._entry = this._cells.get(0);
    this._entry?.setAttribute("tabindex", "0");
    /** What the axes are, where their labels are too short to say so. It belongs above the grid. */
    this.axes = element("p", "mx-axes", {}, axesText(dims, isWrapped ? columns : 0, layout.beside));
    /** @type {Fit | null} */
    this._fitted = null;
    this._fit(FIRST_ROOM);
    this._watchWidth();
    this._listen();
  }

  _listen() {
    this.node.addEventListener("keydown", (event) => this._onKey(event));
    this.node.addEventListener("click", (event) => {
      const rank = rankOf(event.target);
      if (rank !== null) {
        this.focus(rank);
        this.choose(rank);
      }
    });
    for (const entered of ["pointerover", "focusin"]) {
      this.node.addEventListener(entered, (event) => this._mark(rankOf(event.target)));
    }
    for (const left of ["pointerleave", "focusout"]) {
      this.node.addEventListener(left, () => this._mark(null));
    }
  }

  /**
   * Mark the heads of a rank's row and column.
   * @param {number | null} rank
   */
  _mark(rank) {
    for (const head of this.node.querySelectorAll(".mx-here")) {
      head.classList.remove("mx-here");
    }
    const y = rank === null ? -1 : this._places.findIndex((ranks) => ranks.includes(rank));
    const x = rank === null ? -1 : (this._places[y]?.indexOf(rank) ?? -1);
    this._rowHeads[y]?.classList.add("mx-here");
    this._headsAbove(y)[x]?.classList.add("mx-here");
  }

  /**
   * The heads of the block that has this row.
   * @param {number} y
   * @returns {readonly Element[]}
   */
  _headsAbove(y) {
    const rows = this._fitted?.rows ?? 0;
    const copy = rows > 0 ? this._copies[Math.floor(y / rows) - 1] : undefined;
    return copy === undefined ? this._heads : [...copy.querySelectorAll(".mx-column")];
  }

  /**
   * Lay rows in blocks side by side, each below the heads of the columns.
   * @param {number} rows of a block; 0: no blocks
   */
  _fold(rows) {
    for (const copy of this._copies) {
      copy.remove();
    }
    this._copies = [];
    this.node.toggleAttribute("data-folded", rows > 0);
    this.node.style.setProperty("--mx-tile-rows", String(rows + 1));
    for (let y = rows; rows > 0 && y < this._lines.length; y += rows) {
      const copy = /** @type {HTMLElement} */ (this._headRow?.cloneNode(true));
      copy.removeAttribute("role");
      copy.setAttribute("aria-hidden", "true"); // a screen reader has the first ones
      this._lines[y]?.before(copy);
      this._copies.push(copy);
    }
  }

  /** @param {string} corner the dims of the rows */
  _addHeads(corner) {
    const row = element("div", "mx-row mx-heads", { role: "row" });
    if (this._labels.some((label) => label !== "")) {
      const role = corner === "" ? "presentation" : "columnheader";
      row.append(element("span", "mx-label mx-corner", { role, title: corner }, corner));
    }
    for (const name of this._names) {
      const head = element("span", "mx-column", { role: "columnheader", "aria-label": name, title: name });
      head.append(element("span", "mx-tick"));
      this._heads.push(head);
      row.append(head);
    }
    this._headRow = row;
    this.node.append(row);
  }

  _watchWidth() {
    if (typeof ResizeObserver !== "undefined") {
      const observer = new ResizeObserver(([entry]) => {
        // A frame later: a change of tiles in the callback itself may change the width once more.
        requestAnimationFrame(() => this._fit(entry?.contentRect.width ?? 0));
      });
      observer.observe(this.node);
    }
  }

  /**
   * Size the tiles for that width.
   * @param {number} room
   */
  _fit(room) {
    if (room <= 0) {
      return; // It is not shown.
    }
    const fit = fitOf(this._layout, room);
    if (JSON.stringify(fit) === JSON.stringify(this._fitted)) {
      return;
    }
    this._fitted = fit;
    this.node.dataset.look = fit.look;
    for (const name of /** @type {const} */ (["width", "height", "gap", "label"])) {
      this.node.style.setProperty(`--mx-tile-${name}`, `${fit[name]}px`);
    }
    this._heads.forEach((head, x) => {
      const tick = /** @type {HTMLElement} */ (head.firstElementChild);
      const name = this._names[x] ?? "";
      setText(tick, fit.fullColumns ? name : shortLabel(name));
      head.classList.toggle("mx-quiet", x % fit.everyColumn !== 0);
    });
    const needsHeads = !this._isSingle || fit.look !== "roomy";
    this.axes.hidden = !(needsHeads && this._heads.length > 0 && !fit.fullColumns) && !fit.shortLabels;
    if (this._headRow !== null) {
      this._headRow.hidden = !needsHeads;
    }
    this.node.classList.toggle("mx-short", fit.shortLabels);
    const labels = this._labels.filter((label) => label !== "");
    this._rowHeads.forEach((head, y) => {
      const label = labels[y] ?? "";
      setText(/** @type {HTMLElement} */ (head.firstElementChild), fit.shortLabels ? shortLabel(label) : label);
      head.classList.toggle("mx-quiet", y % fit.everyRow !== 0);
    });
    this._fold(fit.rows);
    this._onFit(fit);
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
    this._select("false");
    this.chosen = rank === this.chosen ? null : rank;
    this._select("true");
    this._onChoice();
  }

  /** @param {string} selected */
  _select(selected) {
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
 * "gpus across, hosts down"
 * @param {readonly string[]} dims
 * @param {number} wrap the length of rows into which the one dim is broken; 0: it is not
 * @param {number} beside so many of the innermost dim down are in a row
 */
function axesText(dims, wrap, beside) {
  const across = dims[dims.length - 1] ?? "";
  if (wrap > 0) {
    return `${across} in rows of ${wrap}, numbered from +0`;
  }
  const down = dims.slice(0, -1).join(" and ");
  const inRows = beside > 1 ? `, ${beside} ${dims[dims.length - 2] ?? ""} in a row, numbered from +0` : "";
  return down ? `${across} across, ${down} down${inRows}` : across;
}

/**
 * The rank whose cell this is, or is in.
 * @param {EventTarget | null} target
 */
export function rankOf(target) {
  const node = target instanceof Element ? target.closest("[role=gridcell]") : null;
  return node instanceof HTMLElement ? Number(node.dataset.rank) : null;
}
