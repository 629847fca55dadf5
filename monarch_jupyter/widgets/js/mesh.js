/**
 * One mesh as a grid of ranks by state.
 *
 * Elements are kept and changed in place, so that ten updates a second neither move the focus nor cost more
 * than the ranks that changed. State is an icon and a word; colour only repeats it.
 */

import { ConfirmButton, Outcome, report } from "./controls.js";
import { ICONS, count, debuggedText, doing, element, endpointText, extentText, isAtWork, pointText, setAttribute, setText } from "./dom.js";
import { RankGrid, densityOf } from "./grid.js";
import { RankDetails } from "./rank_details.js";

/** @typedef {import("./protocol.js").Mesh} Mesh */
/** @typedef {import("./protocol.js").Row} Row */

/** @type {readonly import("./protocol.js").RankState[]} */
const ORDER = ["failed", "paused", "busy", "idle", "starting", "stopped"];

/** One rank of the grid. */
class Cell {
  /**
   * @param {boolean} dense whether there is room for no more than an icon
   * @param {boolean} underHead whether a column head says its place already
   */
  constructor(dense, underHead) {
    this.node = element("div", "mx-cell", { role: "gridcell", tabindex: "-1", "aria-selected": "false" });
    this._underHead = underHead;
    this._icon = element("span", "mx-icon", { "aria-hidden": "true" });
    this._where = dense ? null : element("span", "mx-where");
    this._what = dense ? null : element("span", "mx-what");
    if (this._where !== null && this._what !== null) {
      const top = element("span", "mx-top");
      top.append(this._icon, this._where);
      this.node.append(top, this._what);
    } else {
      this.node.append(this._icon);
    }
    /** @type {Row | null} */
    this._row = null;
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
    const point = pointText(row.point);
    this.node.dataset.state = row.state;
    setText(this._icon, ICONS[row.state] ?? "");
    if (this._where !== null && this._what !== null) {
      setText(this._where, this._underHead ? row.state : point || "rank 0");
      const busy = isAtWork(row) ? endpointText(row) : "";
      setText(this._what, busy || (this._underHead ? "" : row.state));
      this._what.hidden = this._what.textContent === "";
    }
    setAttribute(this.node, "aria-label", `${`${mesh} ${point}`.trim()}: ${doing(row)}`);
    setAttribute(this.node, "title", `${point} ${doing(row)}`.trim());
  }
}

/** One mesh: its headline, its grid, and the details of the rank that was chosen. */
export class MeshView {
  /**
   * @param {Mesh} mesh
   * @param {import("./controls.js").Ask} ask
   * @param {{dense?: boolean, bare?: boolean}} [options] `bare`: the heading of the mesh is elsewhere
   */
  constructor(mesh, ask, options = {}) {
    this._mesh = mesh;
    this._ended = false;
    this.node = element("section", "mx-mesh");
    this._name = element("strong", "mx-name");
    this._extent = element("code", "mx-extent");
    this._state = element("span", "mx-state");
    this._place = element("span", "mx-muted");
    this._failed = element("div", "mx-failed", { role: "status" });
    this._debugged = element("p", "mx-tally");
    this._tally = element("p", "mx-tally");
    this._outcome = new Outcome();
    const stop = this._ending("Stop", "stop", ask);
    const kill = this._ending("Kill", "kill", ask);
    this._actions = element("span", "mx-actions", { role: "group", "aria-label": `${mesh.name}: end it` });
    this._actions.append(stop.node, kill.node);
    const head = element("header", "mx-head");
    const said = [this._name, this._extent, this._state, this._place];
    head.append(...(options.bare ? [] : said), this._actions);
    this._details = new RankDetails(ask);
    /** @type {Map<number, Cell>} */
    this._cells = new Map();
    const density = options.dense ? "dense" : densityOf(mesh.sizes);
    const makeCell = (/** @type {number} */ rank, /** @type {boolean} */ underHead) => {
      const cell = new Cell(density === "dense", underHead);
      this._cells.set(rank, cell);
      return cell.node;
    };
    this._grid = new RankGrid(mesh.name, mesh.sizes, density, makeCell, () => this._showDetails());
    this.node.append(head, ...(options.bare ? [] : [this._failed, this._debugged, this._tally]), this._outcome.node, this._grid.node, this._details.node);
    this.update(mesh);
  }

  /**
   * @param {string} label
   * @param {"stop" | "kill"} what
   * @param {import("./controls.js").Ask} ask
   */
  _ending(label, what, ask) {
    const question = () => `${label} ${count(this._mesh.rows.length, "process").replace(/sss?$/, "sses")}?`;
    return new ConfirmButton(label, question, () => {
      const meanwhile = what === "stop" ? "stopping; actors clean up" : "killing";
      report(this._outcome, `${meanwhile} …`, ask({ do: what, mesh: this._mesh.uid }));
    });
  }

  /** @param {Mesh} mesh */
  update(mesh) {
    this._mesh = mesh;
    if (this._ended && mesh.state !== "stopped") {
      this._ended = this._actions.hidden = false; // Another kernel has attached to it.
    }
    setAttribute(this.node, "aria-label", mesh.name);
    setText(this._name, mesh.name);
    setText(this._extent, extentText(mesh.sizes));
    setText(this._state, `${ICONS[mesh.state] ?? ""} ${mesh.state}`);
    this._state.dataset.state = mesh.state;
    const actors = mesh.actors.length > 0 ? [`actors: ${mesh.actors.join(", ")}`] : [];
    setText(this._place, [...(mesh.host ? [`on ${mesh.host}`] : []), ...actors].join("; "));
    this._showFailed(mesh.failed);
    setText(this._debugged, debuggedText(mesh));
    this._debugged.hidden = mesh.debugged.length === 0;
    this._count(mesh);
    for (const row of mesh.rows) {
      this._cells.get(row.rank)?.update(mesh.name, row);
    }
    this._showDetails();
  }

  /** @param {readonly string[]} lines of meshes of actors that have failed */
  _showFailed(lines) {
    this._failed.hidden = lines.length === 0;
    const shown = [...this._failed.children].map((child) => child.textContent);
    if (shown.length !== lines.length || lines.some((line, at) => shown[at] !== `${ICONS.failed} ${line}`)) {
      this._failed.replaceChildren(...lines.map((line) => element("p", "", {}, `${ICONS.failed} ${line}`)));
    }
  }

  /** @param {Mesh} mesh */
  _count(mesh) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const row of mesh.rows) {
      counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
    }
    const parts = ORDER.filter((state) => counts.has(state)).map((state) => {
      const part = element("span", "mx-count", {}, `${ICONS[state] ?? ""} ${counts.get(state) ?? 0} ${state}`);
      part.dataset.state = state;
      return part;
    });
    if (parts.map((part) => part.textContent).join("") !== this._tally.textContent) {
      this._tally.replaceChildren(...parts);
    }
  }

  /** The mesh has ended; its last state stays, marked as stopped. */
  end() {
    if (!this._ended) {
      this._ended = true;
      this._actions.hidden = true;
      const rows = this._mesh.rows.map((row) =>
        row.state === "failed" ? row : { ...row, state: /** @type {const} */ ("stopped"), endpoint: null },
      );
      this.update({ ...this._mesh, state: "stopped", debugged: [], rows });
    }
  }

  /** Once a second, for the times. */
  tick() {
    this._details.tick();
  }

  /**
   * Open the console of that rank, in its details.
   * @param {number} rank
   */
  openConsole(rank) {
    if (rank !== this._grid.chosen) {
      this._grid.choose(rank);
    }
    this._details.openConsole();
  }

  /** It is off the page. */
  close() {
    this._details.close();
  }

  _showDetails() {
    const { chosen } = this._grid;
    const row = chosen === null ? undefined : this._mesh.rows.find(({ rank }) => rank === chosen);
    this._details.show(this._mesh, row ?? null, this._ended);
  }
}
