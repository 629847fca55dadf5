/**
 * One value a rank as a grid over the dims of its mesh: a heat map with its scale for numbers, texts for all else.
 *
 * Runs in: the page, through anywidget. As the explorer does, every view keeps its own copy, from all values and the
 * changes after them, and changes elements in place. A number is said in its cell, in its name and below the grid for
 * the rank that is pointed at or focused; colour only repeats it.
 */

import { count, element, extentText, pointText, setAttribute, setText } from "./dom.js";
import { RankGrid, pointOf, rankOf, ranksOf } from "./grid.js";
import { PacedDrawing } from "./paced_drawing.js";
import { connectView } from "./requests.js";
import { reduceValues } from "./views.js";

/** @typedef {import("./views.js").ValuesView} ValuesView */
/** A cell, and what it says. @typedef {{node: HTMLElement, text: HTMLElement | null}} ValueCell */

const NOT_COMPARED = " (contents not compared)"; // as in rendering/value_contents.py
const FAINTEST = 8; // per cent of the theme's colour in the cell of the lowest number
const STRONGEST = 55;
const TEXT_WIDTH = 78; // pixels of a tile
const NUMBER_WIDTH = 54; // pixels that a number of `shortNumber` needs in a tile
const MOST_TEXTS = 256; // values that are shown as texts, if they are numbers
const HINT = "Point at a rank, or walk the grid with the arrow keys; Enter keeps a rank in view.";

export class ValuesGrid {
  /** @param {string} name the name of the values, or "" */
  constructor(name) {
    this._name = name || "values";
    this.node = element("section", "mx-explorer mx-values", { "aria-label": `Values: ${this._name}` });
    this._title = element("strong", "mx-name", {}, name);
    this._extent = element("code", "mx-extent");
    this._summary = element("span", "mx-muted");
    const head = element("header", "mx-head");
    head.append(this._title, this._extent, this._summary);
    this._scale = new Scale();
    this._place = element("div");
    this._reading = element("p", "mx-reading", { role: "status" });
    this.node.append(head, this._scale.node, this._place, this._reading);
    /** @type {ValuesView | null} */
    this._shown = null;
    this._kind = "";
    /** @type {Map<number, ValueCell>} */
    this._cells = new Map();
    /** @type {number | null} the rank that is pointed at or focused */
    this._pointed = null;
    /** @type {RankGrid | null} */
    this._grid = null;
    this._place.addEventListener("pointerover", (event) => this._read(rankOf(event.target)));
    this._place.addEventListener("pointerleave", () => this._read(null));
    this._place.addEventListener("focusin", (event) => this._read(rankOf(event.target)));
    this._place.addEventListener("focusout", () => this._read(null));
  }

  /** @param {ValuesView} values */
  update(values) {
    const places = [Object.entries(values.indices), Object.entries(values.fixed)];
    const kind = JSON.stringify([Object.entries(values.sizes), places, values.numbers === null]);
    if (kind !== this._kind) {
      this._kind = kind;
      this._build(values);
    }
    const before = this._shown;
    const moved = this._scale.fit(values);
    values.texts.forEach((text, rank) => {
      if (moved || before?.texts[rank] !== text) {
        this._fill(rank, text, values);
      }
    });
    this._shown = values;
    const fixed = pointText(values.fixed);
    setText(this._extent, extentText(values.sizes) + (fixed ? ` at ${fixed}` : ""));
    setText(this._summary, summaryOf(values));
    this._say();
  }

  /** @param {ValuesView} values */
  _build(values) {
    this._cells.clear();
    this._shown = this._pointed = null;
    const isNumbers = values.numbers !== null;
    const hasTexts = !isNumbers || ranksOf(values.sizes) <= MOST_TEXTS;
    const cell = (/** @type {number} */ rank) => this._cell(rank, hasTexts);
    this._grid = new RankGrid(this._name, values.sizes, cell, () => this._say(), {
      indices: values.indices,
      // Texts need room, however many there are.
      least: isNumbers ? 4 : TEXT_WIDTH,
      ...(hasTexts ? { most: TEXT_WIDTH } : {}),
      onFit: (fit) => this._place.classList.toggle("mx-wordless", fit.width < NUMBER_WIDTH),
    });
    this._place.replaceChildren(this._grid.axes, this._grid.node);
  }

  /**
   * @param {number} rank
   * @param {boolean} hasText
   */
  _cell(rank, hasText) {
    const node = element("div", "mx-cell mx-value", { role: "gridcell", tabindex: "-1", "aria-selected": "false" });
    const text = hasText ? element("span", "mx-figure") : null;
    if (text !== null) {
      node.append(text);
    }
    this._cells.set(rank, { node, text });
    return node;
  }

  /**
   * @param {number} rank
   * @param {string} text
   * @param {ValuesView} values
   */
  _fill(rank, text, values) {
    const cell = this._cells.get(rank);
    if (cell === undefined) {
      return;
    }
    const number = values.numbers?.[rank];
    const strength = typeof number === "number" ? this._scale.strength(number) : null;
    cell.node.classList.toggle("mx-odd", number === null);
    cell.node.style.setProperty("--mx-heat", `${strength ?? 0}%`);
    if (cell.text !== null) {
      setText(cell.text, typeof number === "number" ? shortNumber(number, text) : text);
    }
    setAttribute(cell.node, "aria-label", readingOf(rank, text, values));
    setAttribute(cell.node, "title", readingOf(rank, text, values));
  }

  /** @param {number | null} rank */
  _read(rank) {
    if (rank !== this._pointed) {
      this._pointed = rank;
      this._say();
    }
  }

  /** Update the line below the grid: the rank that is pointed at, else the chosen one. */
  _say() {
    const values = this._shown;
    const chosen = this._grid?.chosen ?? null;
    const rank = this._pointed ?? chosen;
    const text = rank === null ? undefined : values?.texts[rank];
    const known = rank !== null && values !== null && text !== undefined;
    setText(this._reading, known ? readingOf(rank, text, values) : HINT);
    // The cell that is pointed at names its rank already; the chosen one is followed as it changes.
    setAttribute(this._reading, "aria-live", this._pointed === null && chosen !== null ? "polite" : "off");
    this._reading.classList.toggle("mx-muted", !known);
  }
}

/** How strong the colour of a number is, and the words and the bar that say so. */
class Scale {
  constructor() {
    this.node = element("div", "mx-scale", { role: "group", "aria-label": "Scale" });
    this._low = element("span", "mx-figure");
    this._high = element("span", "mx-figure");
    this._where = element("span", "mx-muted");
    const bar = element("span", "mx-ramp", { "aria-hidden": "true" });
    bar.style.setProperty("--mx-faintest", `${FAINTEST}%`);
    bar.style.setProperty("--mx-strongest", `${STRONGEST}%`);
    this.node.append(this._low, bar, this._high, this._where);
    this._from = 0;
    this._to = 0;
  }

  /**
   * Span these numbers; return whether the meaning of colours changed.
   * @param {ValuesView} values
   */
  fit(values) {
    const found = extremesOf(values.numbers ?? []);
    this.node.hidden = found === null;
    if (found === null) {
      return false;
    }
    const { low, high } = found;
    const from = values.numbers?.[low] ?? 0;
    const to = values.numbers?.[high] ?? 0;
    setText(this._low, shortNumber(from, values.texts[low] ?? ""));
    setText(this._high, shortNumber(to, values.texts[high] ?? ""));
    const at = (/** @type {number} */ rank) => pointText(placeOf(rank, values)) || "the one rank";
    setText(this._where, from === to ? "all alike" : `lowest at ${at(low)}, highest at ${at(high)}`);
    const moved = from !== this._from || to !== this._to;
    this._from = from;
    this._to = to;
    return moved;
  }

  /** @param {number} number */
  strength(number) {
    const share = this._to > this._from ? (number - this._from) / (this._to - this._from) : 0;
    return Math.round(FAINTEST + (STRONGEST - FAINTEST) * share);
  }
}

/**
 * The ranks of the first lowest and the first highest number; null where none is finite.
 * @param {readonly (number | null)[]} numbers
 */
function extremesOf(numbers) {
  let low = -1;
  let high = -1;
  let [from, to] = [Infinity, -Infinity];
  numbers.forEach((number, rank) => {
    if (number !== null && number < from) {
      [low, from] = [rank, number];
    }
    if (number !== null && number > to) {
      [high, to] = [rank, number];
    }
  });
  return low < 0 ? null : { low, high };
}

/**
 * The coordinates of a rank in the mesh that was spawned.
 * @param {number} rank
 * @param {ValuesView} values
 */
function placeOf(rank, { sizes, dims, indices, fixed }) {
  const point = pointOf(rank, sizes);
  return Object.fromEntries(
    dims.map((dim) => [dim, fixed[dim] ?? indices[dim]?.[point[dim] ?? 0] ?? point[dim] ?? 0]),
  );
}

/** @param {ValuesView} values */
function summaryOf({ numbers, texts }) {
  const odd = numbers?.filter((number) => number === null).length ?? 0;
  const different = new Set(texts).size;
  const compared = !texts.some((text) => text.endsWith(NOT_COMPARED));
  const alike =
    different > 1 ? `${different.toLocaleString("en")} different` : texts.length > 1 && compared ? "all alike" : null;
  const parts = [alike, compared ? null : "contents not compared"].filter((part) => part !== null);
  return [count(texts.length, "value"), ...parts, ...(odd > 0 ? [`${odd} not finite`] : [])].join(", ");
}

/**
 * "hosts=0 gpus=3: 0.25", the number in full.
 * @param {number} rank
 * @param {string} text
 * @param {ValuesView} values
 */
function readingOf(rank, text, values) {
  const point = pointText(placeOf(rank, values));
  return `${point || "rank 0"}: ${text}`;
}

/**
 * As short as it can be said with four digits.
 * @param {number} number
 * @param {string} text the number in full
 */
function shortNumber(number, text) {
  return text.length <= 6 ? text : String(Number(number.toPrecision(4)));
}

/** @param {import("./requests.js").RenderProps} props */
function render({ model, el }) {
  /** @type {ValuesView | null} */
  let known = null;
  const shown = new ValuesGrid(String(model.get("name")));
  const take = (/** @type {import("./protocol.js").Streamed} */ message) => {
    const { view, sync } = reduceValues(known, message);
    if (sync) {
      connection.sync();
    }
    const isChanged = view !== known;
    known = view;
    if (isChanged) {
      drawing.ask();
    }
  };
  const drawing = new PacedDrawing(() => {
    if (known !== null && !known.stale) {
      shown.update(known);
    }
  });
  const connection = connectView({ model, el }, { take });
  el.append(shown.node);
  connection.begin(model.get("first"));
  return () => {
    drawing.end();
    connection.end();
  };
}

export default { render };
