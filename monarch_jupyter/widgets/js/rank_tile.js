/** The tile of one rank: an icon, a coordinate or a state, and what the rank does, as far as there is room. */

import { ICONS, doing, element, endpointText, isAtWork, pointText, setAttribute, setText } from "./dom.js";
import { fits, shortLabel } from "./tiles.js";
import { Sparkline } from "./usage.js";

/** @typedef {import("./protocol.js").Row} Row */

export class RankTile {
  /**
   * @param {boolean} isPlain whether it never has room for words
   * @param {boolean} underHead whether a column head says its place already
   */
  constructor(isPlain, underHead) {
    this.node = element("div", "mx-cell", { role: "gridcell", tabindex: "-1", "aria-selected": "false" });
    this._underHead = underHead;
    this._icon = element("span", "mx-icon", { "aria-hidden": "true" });
    this._where = isPlain ? null : element("span", "mx-where");
    this._what = isPlain ? null : element("span", "mx-what");
    if (this._where !== null && this._what !== null) {
      const top = element("span", "mx-top");
      top.append(this._icon, this._where);
      this.node.append(top, " ", this._what); // the space keeps words apart where the tile is read as text
    } else {
      this.node.append(this._icon);
    }
    this._mesh = "";
    /** @type {Row | null} */
    this._row = null;
    /** @type {import("./tiles.js").Fit | null} */
    this._fitted = null;
    /** @type {{text: string, figures: readonly (number | null)[], top: number} | null} instead of the state */
    this._figure = null;
    /** @type {Sparkline | null} */
    this._spark = null;
  }

  /**
   * @param {string} mesh
   * @param {Row} row
   */
  update(mesh, row) {
    if (row === this._row) {
      return;
    }
    this._row = row;
    this._mesh = mesh;
    this.node.dataset.state = row.state;
    setText(this._icon, ICONS[row.state] ?? "");
    this._write();
  }

  /** @param {import("./tiles.js").Fit} fit */
  fit(fit) {
    this._fitted = fit;
    this._write();
  }

  /** @param {boolean} dimmed */
  dim(dimmed) {
    this.node.classList.toggle("mx-dimmed", dimmed);
  }

  /** Show the state, no figure. */
  showState() {
    if (this._figure !== null) {
      this._figure = null;
      this.node.classList.remove("mx-heated");
      this._write();
    }
  }

  /**
   * Show a figure instead of the state.
   * @param {string} text
   * @param {number} strength of the colour, in per cent
   * @param {readonly (number | null)[]} figures over time
   * @param {number} top the figure at the upper edge of their line
   */
  showFigure(text, strength, figures, top) {
    this._figure = { text, figures, top };
    this.node.classList.add("mx-heated");
    this.node.style.setProperty("--mx-heat", `${strength}%`);
    this._write();
  }

  /** @param {Row} row */
  _name(row) {
    const point = pointText(row.point);
    const figure = this._figure === null ? "" : `, ${this._figure.text}`; // the name has all that is shown
    setAttribute(this.node, "aria-label", `${`${this._mesh} ${point}`.trim()}: ${doing(row)}${figure}`);
    setAttribute(this.node, "title", `${point} ${doing(row)}`.trim());
  }

  _write() {
    const row = this._row;
    if (row !== null) {
      this._name(row);
    }
    if (this._where === null || this._what === null || row === null || this._fitted === null) {
      return;
    }
    const { look, width, height } = this._fitted;
    const point = pointText(row.point) || "rank 0";
    const figure = this._figure;
    const isHigh = look === "roomy" && height > 40;
    const busy = isAtWork(row) ? endpointText(row) : "";
    const state = isHigh && busy ? `${row.state} in` : row.state; // the endpoint stands below it
    const names = figure !== null ? [figure.text] : this._underHead ? [state] : [point, shortLabel(point)];
    setText(this._where, names.find((name) => fits(name, width)) ?? "");
    setText(this._what, isHigh && figure === null ? busy || (this._underHead ? "" : row.state) : "");
    this._what.hidden = this._what.textContent === "";
    this._draw(isHigh ? figure : null);
  }

  /** @param {{figures: readonly (number | null)[], top: number} | null} figure */
  _draw(figure) {
    if (figure === null) {
      this._spark?.node.remove();
      this._spark = null;
      return;
    }
    if (this._spark === null) {
      this._spark = new Sparkline();
      this.node.append(this._spark.node);
    }
    this._spark.show(figure.figures, figure.top);
  }
}
