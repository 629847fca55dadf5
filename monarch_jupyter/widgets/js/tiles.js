/**
 * How large the tiles of a grid are in the room that there is, and what its axes can say. Pure.
 *
 * A tile shrinks before a column leaves the view; only tiles of the least width make the grid scroll. Texts that
 * don't fit are left out or replaced by shorter ones, never cut: cut coordinates look alike.
 */

/** Width of a character of the interface's font, in pixels, rounded up. */
const CHARACTER = 7.6;
const SMALL_CHARACTER = 6.4;
const STEPS = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128];
const ROOMY = 86;
const COMPACT = 22;
/** Pixels of rows that most screens show at once. */
const TALLEST = 500;
/** Pixels between two blocks of rows. */
const BETWEEN = 16;
/** Pixels between the tiles of blocks, and the least width of these. */
const CLOSE = 2;
const LEAST_FOLDED = 10;

/**
 * - roomy: coordinates or state, and what the rank does;
 * - compact: a short coordinate, or an icon;
 * - tiny: colour.
 * @typedef {"roomy" | "compact" | "tiny"} Look
 */

/**
 * All lengths in pixels. `shortLabels`: rows are labelled by indices alone; `every`: so many rows or columns have one
 * label; `fullColumns`: columns are labelled with the dim; `rows`: so many rows make a block, and the next ones lie
 * beside it; 0: all rows lie below each other.
 * @typedef {object} Fit
 * @property {Look} look
 * @property {number} width
 * @property {number} height
 * @property {number} gap
 * @property {number} label
 * @property {boolean} shortLabels
 * @property {number} everyRow
 * @property {number} everyColumn
 * @property {boolean} fullColumns
 * @property {number} rows
 */

/**
 * The input of a layout: the columns of the widest row, the ranks, the labels, the limits of a tile's width, and
 * whether rows may lie in blocks side by side.
 * @typedef {object} Layout
 * @property {number} columns
 * @property {number} ranks
 * @property {readonly string[]} labels
 * @property {readonly string[]} heads
 * @property {number} [least]
 * @property {number} [most]
 * @property {boolean} [folds]
 */

/**
 * @param {Layout} layout
 * @param {number} room the width of the grid
 * @returns {Fit}
 */
export function fitOf({ columns, ranks, labels, heads, least = 3, most, folds = false }, room) {
  const full = widest(labels, CHARACTER);
  const shortLabels = full > 0 && (full > room / 5 || (room - full) / columns < COMPACT);
  const label = shortLabels ? widest(labels.map(shortLabel), CHARACTER) : full;
  const largest = most ?? (ranks > 1024 ? 12 : ranks > 256 ? 24 : ranks > 64 ? ROOMY : 104);
  const each = (room - label) / columns;
  const folded = folds && ranks > 256 ? foldOf({ columns, ranks, labels }, label, largest, room) : null;
  const gap = folded !== null ? CLOSE : each >= 40 ? 5 : each >= 14 ? 2 : 1;
  const width = folded?.width ?? Math.max(least, Math.min(largest, Math.floor(each - gap)));
  const look = lookOf(width);
  const height = heightOf(look, width, ranks);
  const head = widest(heads, SMALL_CHARACTER);
  const fullColumns = heads.length > 0 && head <= width;
  const short = widest(heads.map(shortLabel), SMALL_CHARACTER);
  const everyColumn = fullColumns ? 1 : stepOf(short, width + gap);
  const everyRow = stepOf(14, height + gap);
  return { look, width, height, gap, label, shortLabels, everyRow, everyColumn, fullColumns, rows: folded?.rows ?? 0 };
}

/**
 * The largest tiles with which many short rows, in blocks side by side, are on one screen; if there are too many, the
 * smallest ones. Null: rows are on one screen without that, or there is no room for two blocks.
 * @param {Pick<Layout, "columns" | "ranks" | "labels">} layout
 * @param {number} label the width of the labels of rows
 * @param {number} largest
 * @param {number} room
 */
function foldOf({ columns, ranks, labels }, label, largest, room) {
  const tall = (/** @type {number} */ rows, /** @type {number} */ width) =>
    rows * (heightOf(lookOf(width), width, ranks) + CLOSE);
  if (tall(labels.length, largest) <= TALLEST) {
    return null;
  }
  let found = null;
  for (let width = largest; width >= LEAST_FOLDED; width -= 1) {
    const blocks = Math.floor((room + BETWEEN) / (label + columns * (width + CLOSE) + BETWEEN));
    const rows = Math.ceil(labels.length / Math.max(1, blocks));
    if (rows < labels.length) {
      found = { width, rows };
      if (tall(rows, width) <= TALLEST) {
        break;
      }
    }
  }
  return found;
}

/**
 * @param {number} width
 * @returns {Look}
 */
function lookOf(width) {
  return width >= ROOMY ? "roomy" : width >= COMPACT ? "compact" : "tiny";
}

/**
 * @param {Look} look
 * @param {number} width
 * @param {number} ranks
 */
function heightOf(look, width, ranks) {
  if (ranks > 1024) {
    return Math.max(6, Math.min(width, 10));
  }
  if (ranks > 256) {
    return Math.max(10, Math.min(width, 20));
  }
  return look === "roomy" && ranks <= 64 ? 46 : look === "tiny" ? 20 : 26;
}

/**
 * Every how many tiles of `size` there is room for `needed`.
 * @param {number} needed
 * @param {number} size
 */
function stepOf(needed, size) {
  return STEPS.find((step) => step * size >= needed) ?? 256;
}

/**
 * @param {readonly string[]} texts
 * @param {number} character
 */
function widest(texts, character) {
  const longest = Math.max(0, ...texts.map((text) => text.length));
  return longest === 0 ? 0 : Math.ceil(longest * character) + 10;
}

/**
 * Indices without their dims: "1 3" of "hosts=1 gpus=3", "0..15" of "gpus=0..15".
 * @param {string} label
 */
export function shortLabel(label) {
  return label.replace(/[A-Za-z_]\w*=/g, "");
}

/**
 * Whether a text fits into a tile beside its icon.
 * @param {string} text
 * @param {number} width of the tile
 */
export function fits(text, width) {
  return text.length * 7 + 27 <= width; // the font of small tiles is smaller
}
