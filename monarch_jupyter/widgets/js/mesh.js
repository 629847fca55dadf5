/**
 * One mesh as a grid of ranks by state.
 *
 * Elements are kept and changed in place, so that ten updates a second neither move the focus nor cost more
 * than the ranks that changed. State is an icon and a word; colour only repeats it.
 */

import { ConfirmButton, Outcome, offers, report } from "./controls.js";
import { ICONS, button, count, debuggedText, doing, duration, element, extentText, pointText, setAttribute, setText } from "./dom.js";
import { RankGrid, ranksOf, rankOf } from "./grid.js";
import { MeasureChoice } from "./measures.js";
import { RankDetails } from "./rank_details.js";
import { RankTile } from "./rank_tile.js";
import { StateFilter } from "./state_filter.js";
import { TimelineView } from "./timeline.js";
import { UsageFeed } from "./usage.js";

/** @typedef {import("./protocol.js").Mesh} Mesh */
/** @typedef {import("./protocol.js").Row} Row */

/** Meshes of more ranks have tiles without texts. */
const MOST_TEXTS = 256;
const HINT = "Point at a rank, or walk the grid with the arrow keys; Enter shows more of a rank.";

/** One mesh: its headline, its grid, and the details of the rank that was chosen. */
export class MeshView {
  /**
   * @param {Mesh} mesh
   * @param {import("./controls.js").Ask} ask
   * @param {{bare?: boolean}} [options] `bare`: the heading of the mesh is elsewhere
   */
  constructor(mesh, ask, options = {}) {
    this._mesh = mesh;
    this._ended = false;
    this._isFiltered = false;
    /** @type {number | null} */
    this._shownRank = null;
    this.node = element("section", "mx-mesh");
    this._name = element("strong", "mx-name");
    this._extent = element("code", "mx-extent");
    this._state = element("span", "mx-state");
    this._place = element("span", "mx-muted");
    this._failed = element("div", "mx-failed", { role: "status" });
    this._debugged = element("p", "mx-tally");
    this._filter = new StateFilter(mesh.name, () => this._applyFilter(), (rank) => this._choose(rank));
    this._outcome = new Outcome();
    const stop = this._ending("Stop", "stop", ask);
    const kill = this._ending("Kill", "kill", ask);
    /** Buttons that end the mesh; of a bare view they belong beside the heading that is elsewhere. */
    this.actions = element("span", "mx-actions", { role: "group", "aria-label": `${mesh.name}: end it` });
    this._restart = this._restarting(ask);
    this._canRestart = offers(ask, "restart");
    stop.node.hidden = !offers(ask, "stop");
    kill.node.hidden = !offers(ask, "kill");
    this.actions.append(this._restart.node, stop.node, kill.node);
    const head = element("header", "mx-head");
    const said = [this._name, this._extent, this._state, this._place];
    head.append(...said, this.actions);
    this._usage = new UsageFeed(mesh.uid, ask, () => this._onUsage());
    this._details = new RankDetails(ask, this._usage);
    this._measure = new MeasureChoice(mesh.name, () => this._onMeasure());
    this._timeline = new TimelineView(ask);
    const opener = button("Timeline", () => {
      this._timeline.toggle();
      opener.setAttribute("aria-expanded", String(!this._timeline.node.hidden));
    });
    opener.hidden = !offers(ask, "timeline");
    opener.setAttribute("aria-expanded", "false");
    const tools = element("div", "mx-bar", { role: "group", "aria-label": `${mesh.name}: views` });
    tools.append(opener, this._measure.node);
    /** @type {Map<number, RankTile>} */
    this._tiles = new Map();
    const isPlain = ranksOf(mesh.sizes) > MOST_TEXTS;
    const makeTile = (/** @type {number} */ rank, /** @type {boolean} */ underHead) => {
      const tile = new RankTile(isPlain, underHead);
      this._tiles.set(rank, tile);
      return tile.node;
    };
    const onFit = (/** @type {import("./tiles.js").Fit} */ fit) => {
      for (const tile of this._tiles.values()) {
        tile.fit(fit);
      }
    };
    this._grid = new RankGrid(mesh.name, mesh.sizes, makeTile, () => this._showDetails(), { onFit, joins: true });
    this._reading = element("p", "mx-reading mx-muted", {}, HINT);
    /** @type {number | null} the rank that is pointed at or focused */
    this._pointed = null;
    this._listen();
    const stated = options.bare ? [] : [head, this._failed, this._debugged];
    this.node.append(...stated, this._filter.node, tools, this._outcome.node);
    this.node.append(this._grid.axes, this._grid.node, this._reading, this._timeline.node, this._details.node);
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

  /** @param {import("./controls.js").Ask} ask */
  _restarting(ask) {
    const question = () => `End ${this._mesh.name} and start it again?`;
    const made = new ConfirmButton("Restart", question, () => {
      report(this._outcome, "restarting …", ask({ do: "restart", mesh: this._mesh.uid }));
    });
    made.node.title = "end this mesh, and spawn it again as it was spawned, without its actors";
    return made;
  }

  _onMeasure() {
    this._usage.poll();
    this._onUsage();
  }

  _onUsage() {
    this._measure.offer(this._usage.hasGpus);
    this._measure.paint(this._usage, this._mesh.rows, this._tiles);
    this._details.showUsage();
  }

  /** @param {Mesh} mesh */
  update(mesh) {
    this._mesh = mesh;
    this._timeline.update(mesh);
    this._restart.node.hidden = !this._canRestart || mesh.rows.every((row) => row.state !== "failed");
    if (this._ended && mesh.state !== "stopped") {
      this._ended = this.actions.hidden = false; // Another kernel has attached to it.
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
    this._filter.update(mesh.rows);
    for (const row of mesh.rows) {
      this._tiles.get(row.rank)?.update(mesh.name, row);
    }
    this._applyFilter();
    this._read();
    this._showDetails();
  }

  /** Dim the ranks that are in another state than the chosen one. */
  _applyFilter() {
    const wanted = this._filter.chosen;
    if (wanted === null && !this._isFiltered) {
      return;
    }
    this._isFiltered = wanted !== null;
    for (const row of this._mesh.rows) {
      this._tiles.get(row.rank)?.dim(wanted !== null && row.state !== wanted);
    }
  }

  /** @param {number} rank */
  _choose(rank) {
    this._grid.focus(rank);
    if (rank !== this._grid.chosen) {
      this._grid.choose(rank);
    }
  }

  _listen() {
    const point = (/** @type {number | null} */ rank) => {
      this._pointed = rank;
      this._read();
    };
    for (const entered of ["pointerover", "focusin"]) {
      this._grid.node.addEventListener(entered, (event) => point(rankOf(event.target)));
    }
    for (const left of ["pointerleave", "focusout"]) {
      this._grid.node.addEventListener(left, () => point(null));
    }
  }

  /** Update the line below the grid. The tile has the same as its name, so it is not announced. */
  _read() {
    const row = this._pointed === null ? undefined : this._mesh.rows.find(({ rank }) => rank === this._pointed);
    setText(this._reading, row === undefined ? HINT : readingOf(row));
    this._reading.classList.toggle("mx-muted", row === undefined);
  }

  /** @param {readonly string[]} lines of meshes of actors that have failed */
  _showFailed(lines) {
    this._failed.hidden = lines.length === 0;
    const shown = [...this._failed.children].map((child) => child.textContent);
    if (shown.length !== lines.length || lines.some((line, at) => shown[at] !== `${ICONS.failed} ${line}`)) {
      this._failed.replaceChildren(...lines.map((line) => element("p", "", {}, `${ICONS.failed} ${line}`)));
    }
  }

  /** The mesh has ended; its last state stays, marked as stopped. */
  end() {
    if (!this._ended) {
      this._ended = true;
      this.actions.hidden = true;
      const rows = this._mesh.rows.map((row) =>
        row.state === "failed" ? row : { ...row, state: /** @type {const} */ ("stopped"), endpoint: null },
      );
      this.update({ ...this._mesh, state: "stopped", debugged: [], rows });
    }
  }

  /** Once a second, for the times. */
  tick() {
    this._details.tick();
    this._timeline.tick();
    const isUsed = this._measure.chosen !== null || this._grid.chosen !== null;
    if (isUsed && !this._ended && this._mesh.state !== "stopped") {
      this._usage.poll();
    }
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
    const isAnother = chosen !== this._shownRank;
    this._shownRank = chosen;
    this._details.show(this._mesh, row ?? null, this._ended);
    if (isAnother && row !== undefined) {
      this._usage.poll();
      this._details.showUsage();
    }
  }
}

/**
 * "gpus=3: busy in Trainer.step for 4 s, pid 12, 300 MiB", or "gpus=3: failed: killed by SIGKILL, 4 s ago"
 * @param {Row} row
 */
function readingOf(row) {
  const since = row.since_s < 1 ? "" : row.state === "failed" ? `, ${duration(row.since_s)} ago` : ` for ${duration(row.since_s)}`;
  const pid = row.pid === null ? "" : `, pid ${row.pid}`;
  const memory = row.rss_mib === null ? "" : `, ${row.rss_mib.toFixed(0)} MiB`;
  return `${pointText(row.point) || "rank 0"}: ${doing(row)}${since}${pid}${memory}`;
}
