/** How many ranks are in each state, and which: a press on a state shows only its ranks. The one that failed is named. */

import { ICONS, button, count, element, pointText, setAttribute, setText } from "./dom.js";

/** @typedef {import("./protocol.js").Row} Row */
/** @typedef {import("./protocol.js").RankState} RankState */

/** @type {readonly RankState[]} */
const ORDER = ["failed", "suspended", "paused", "busy", "idle", "starting", "stopped"];
/** Ranks that are named beside the grid, each a button. */
const NAMED = 12;

export class StateFilter {
  /**
   * @param {string} name of the mesh
   * @param {() => void} onChange another state was chosen, or none
   * @param {(rank: number) => void} onRank a rank of the list was chosen
   */
  constructor(name, onChange, onRank) {
    /** @type {RankState | null} */
    this.chosen = null;
    this._onChange = onChange;
    this._onRank = onRank;
    this.node = element("div", "mx-filter");
    this._states = element("div", "mx-tally", { role: "group", "aria-label": `${name}: ranks by state` });
    this._ranks = element("div", "mx-matches", { role: "group", "aria-label": `${name}: ranks of the chosen state` });
    this._ranks.hidden = true;
    this.node.append(this._states, this._ranks);
    /** @type {Map<RankState, HTMLButtonElement>} */
    this._buttons = new Map();
    /** @type {readonly Row[]} */
    this._rows = [];
    this._named = "";
  }

  /** @param {readonly Row[]} rows */
  update(rows) {
    this._rows = rows;
    /** @type {Map<RankState, number>} */
    const counts = new Map();
    for (const row of rows) {
      counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
    }
    for (const state of ORDER) {
      this._show(state, counts.get(state) ?? 0);
    }
    this._showRanks();
  }

  /**
   * @param {RankState} state
   * @param {number} number
   */
  _show(state, number) {
    let shown = this._buttons.get(state);
    if (shown === undefined) {
      if (number === 0) {
        return;
      }
      shown = button("", () => this._toggle(state), "mx-count");
      shown.dataset.state = state;
      shown.title = `show only the ranks that are ${state}; press again for all`;
      setAttribute(shown, "aria-pressed", "false");
      this._buttons.set(state, shown);
      const after = ORDER.slice(ORDER.indexOf(state) + 1);
      const next = after.map((one) => this._buttons.get(one)).find((one) => one !== undefined);
      this._states.insertBefore(shown, next ?? null);
    }
    const failed = state === "failed" && number === 1 ? this._rows.find((row) => row.state === state) : undefined;
    const which = failed === undefined ? "" : `: ${pointText(failed.point) || "rank 0"}`;
    setText(shown, `${ICONS[state] ?? ""} ${number.toLocaleString("en")} ${state}${which}`);
    // The chosen one stays, so that it can be released.
    shown.hidden = number === 0 && this.chosen !== state;
  }

  /** @param {RankState} state */
  _toggle(state) {
    this.chosen = this.chosen === state ? null : state;
    for (const [name, shown] of this._buttons) {
      setAttribute(shown, "aria-pressed", String(name === this.chosen));
    }
    this.update(this._rows);
    this._onChange();
  }

  _showRanks() {
    const found = this.chosen === null ? [] : this._rows.filter(({ state }) => state === this.chosen);
    const named = found.slice(0, NAMED);
    this._ranks.hidden = this.chosen === null;
    const written = JSON.stringify([this.chosen, named.map(({ rank }) => rank), found.length]);
    if (written === this._named) {
      return; // A button that is focused stays.
    }
    this._named = written;
    const buttons = named.map((row) => button(pointText(row.point) || "rank 0", () => this._onRank(row.rank)));
    const more = found.length - named.length;
    const rest = found.length === 0 ? "no rank" : more > 0 ? `and ${count(more, "more rank")}` : "";
    this._ranks.replaceChildren(...buttons, ...(rest ? [element("span", "mx-muted", {}, rest)] : []));
  }
}
