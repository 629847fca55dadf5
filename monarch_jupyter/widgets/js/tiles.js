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

/**
 * - roomy: coordinates or state, and what the rank does;
 * - compact: a short coordinate, or an icon;
 * - tiny: colour.
 * @typedef {"roomy" | "compact" | "tiny"} Look
 */

/**
 * All lengths in pixels. `shortLabels`: rows are labelled by indices alone; `every`: so many rows or columns have one
 * label; `fullColumns`: columns are labelled with the dim.
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
 */

/**
 * The input of a layout: the columns of the widest row, the ranks, the labels, and the limits of a tile's width.
 * @typedef {object} Layout
 * @property {number} columns
 * @property {number} ranks
 * @property {readonly string[]} labels
 * @property {readonly string[]} heads
 * @property {number} [least]
 * @property {number} [most]
 */

/**
 * @param {Layout} layout
 * @param {number} room the width of the grid
 * @returns {Fit}
 */
export function fitOf({ columns, ranks, labels, heads, least = 3, most }, room) {
  const full = widest(labels, CHARACTER);
  const shortLabels = full > 0 && (full > room / 5 || (room - full) / columns < COMPACT);
  const label = shortLabels ? widest(labels.map(shortLabel), CHARACTER) : full;
  const largest = most ?? (ranks > 1024 ? 12 : ranks > 256 ? 24 : ranks > 64 ? ROOMY : 104);
  const each = (room - label) / columns;
  const gap = each >= 40 ? 5 : each >= 14 ? 2 : 1;
  const width = Math.max(least, Math.min(largest, Math.floor(each - gap)));
  const look = width >= ROOMY ? "roomy" : width >= COMPACT ? "compact" : "tiny";
  const height = heightOf(look, width, ranks);
  const head = widest(heads, SMALL_CHARACTER);
  const fullColumns = heads.length > 0 && head <= width;
  const short = widest(heads.map(shortLabel), SMALL_CHARACTER);
  const everyColumn = fullColumns ? 1 : stepOf(short, width + gap);
  return { look, width, height, gap, label, shortLabels, everyRow: stepOf(14, height + gap), everyColumn, fullColumns };
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
