/** Tiles by a figure instead of the state: which one, how strong, and where it is lowest and highest. */

import { element, pointText, setText } from "./dom.js";
import { MEASURES, figureText } from "./usage.js";

/** @typedef {import("./activity_protocol.js").Measure} Measure */
/** @typedef {import("./usage.js").UsageFeed} UsageFeed */

const STATE = "state";
const FAINTEST = 6; // per cent of the theme's colour in the tile of the lowest figure
const STRONGEST = 55;

export class MeasureChoice {
  /**
   * @param {string} mesh name
   * @param {() => void} onChange
   */
  constructor(mesh, onChange) {
    this.node = element("label", "mx-measure");
    this._select = element("select", "mx-choice", { "aria-label": `${mesh}: what tiles show` });
    this._summary = element("span", "mx-muted");
    this._select.append(element("option", "", { value: STATE }, STATE));
    for (const { measure, name } of MEASURES) {
      this._select.append(element("option", "", { value: measure }, name));
    }
    this.node.append(element("span", "mx-muted", {}, "Show"), this._select, this._summary);
    this._select.addEventListener("change", onChange);
    this.offer(false);
  }

  /** The chosen measure; null for the state. */
  get chosen() {
    return MEASURES.find(({ measure }) => measure === this._select.value) ?? null;
  }

  /** @param {boolean} hasGpus whether measures of devices are offered */
  offer(hasGpus) {
    for (const option of this._select.options) {
      option.hidden = !hasGpus && option.value.startsWith("gpu") && option.value !== this._select.value;
    }
  }

  /**
   * Show the chosen figures on the tiles.
   * @param {UsageFeed} feed
   * @param {readonly import("./protocol.js").Row[]} rows
   * @param {ReadonlyMap<number, import("./rank_tile.js").RankTile>} tiles
   */
  paint(feed, rows, tiles) {
    const { chosen } = this;
    const figures = chosen === null ? [] : feed.newest(chosen.measure);
    const known = figures.filter((figure) => figure !== null);
    const highest = Math.max(0, ...known);
    const top = Math.max(highest, chosen?.unit === "%" ? 100 : 1);
    for (const { rank } of rows) {
      const figure = figures[rank] ?? null;
      if (chosen === null) {
        tiles.get(rank)?.showState();
      } else {
        const strength = figure === null ? 0 : Math.round(FAINTEST + ((STRONGEST - FAINTEST) * figure) / top);
        tiles.get(rank)?.showFigure(figureText(figure, chosen.unit), strength, feed.series(chosen.measure, rank), top);
      }
    }
    setText(this._summary, chosen === null ? "" : this._summaryOf(figures, rows, chosen.unit));
  }

  /**
   * @param {readonly (number | null)[]} figures
   * @param {readonly import("./protocol.js").Row[]} rows
   * @param {string} unit
   */
  _summaryOf(figures, rows, unit) {
    const found = rows.flatMap((row) => {
      const figure = figures[row.rank] ?? null;
      return figure === null ? [] : [{ figure, place: pointText(row.point) || "the rank" }];
    });
    const [first] = found;
    if (first === undefined) {
      return "no figures yet";
    }
    const low = found.reduce((best, one) => (one.figure < best.figure ? one : best), first);
    const high = found.reduce((best, one) => (one.figure > best.figure ? one : best), first);
    const highest = `highest ${figureText(high.figure, unit)} at ${high.place}`;
    return found.length === 1 ? figureText(first.figure, unit) : `lowest ${figureText(low.figure, unit)} at ${low.place}, ${highest}`;
  }
}
