/** The dashboard: the views of the notebook on a page of its own, for live sessions or a recording. */

import { CaseView } from "./case_view.js";
import { DebugView, pausedGroups } from "./debug_view.js";
import { button, count, element, setAttribute, setText } from "./dom.js";
import { MeshesView } from "./explorer.js";
import { LinesView } from "./line_list.js";
import { SqlView } from "./sql_view.js";
import { TimeSlider } from "./time_slider.js";

/** @typedef {import("./dashboard_server.js").State} State */

const EMPTY_LIVE = "No meshes. A program or notebook spawns them; this page follows.";
const DEBUG = "Debug";
const EMPTY_RECORDED = "No meshes at this time.";

export class Dashboard {
  /** @param {import("./dashboard_server.js").DashboardServer} server */
  constructor(server) {
    this._server = server;
    this.node = element("main", "md-dashboard");
    this._title = element("h1", "", {}, "Monarch");
    this._what = element("span", "mx-muted", { role: "status" });
    this._problem = element("p", "mx-lost", { role: "alert" });
    this._problem.hidden = true;
    this._missing = element("p", "md-missing", { role: "status" });
    this._missing.hidden = true;
    this._slider = new TimeSlider((at) => this._goTo(at));
    this._tabs = element("div", "md-tabs", { role: "tablist", "aria-label": "Views" });
    this._places = element("div", "md-views");
    const head = element("header", "md-top");
    head.append(this._title, this._what, this._tabs);
    this.node.append(head, this._slider.node, this._problem, this._missing, this._places);
    /** @type {{name: string, tab: HTMLButtonElement, node: HTMLElement, poll: (state: State) => void}[]} */
    this._views = [];
    this._isPolling = false;
    /** @type {State | null} */
    this._state = null;
    /** @type {number | null | undefined} the time of a recording that is shown; a recording does not change */
    this._shownAt = undefined;
  }

  /** Ask for the state, and show it; at most one question is under way, and a time of a recording is asked for once. */
  async poll() {
    if (this._isPolling || this._shownAt === this._server.at) {
      return;
    }
    this._isPolling = true;
    const { at } = this._server;
    try {
      const state = await this._server.state();
      if (at === this._server.at) {
        this._show(state);
        this._say("");
        this._shownAt = state.span === null ? undefined : at;
      }
    } catch (error) {
      this._shownAt = undefined;
      const why = error instanceof Error ? error.message : String(error);
      const isLive = this._state === null || this._state.span === null;
      this._say(isLive ? `Not live: ${why}. This is the last known state.` : `This time cannot be shown: ${why}`);
    } finally {
      this._isPolling = false;
    }
  }

  /** @param {State} state */
  _show(state) {
    if (this._views.length === 0) {
      this._begin(state);
    }
    this._state = state;
    const ranks = state.meshes.reduce((sum, mesh) => sum + mesh.rows.length, 0);
    const found = `${count(state.meshes.length, "mesh").replace(/hs$/, "hes")}, ${count(ranks, "rank")}`;
    setText(this._what, state.span === null ? `live: ${found}` : `recording: ${found}`);
    setText(this._missing, state.missing.length > 0 ? `Incomplete. ${state.missing.join("; ")}` : "");
    this._missing.hidden = state.missing.length === 0;
    this._slider.show(state);
    const paused = pausedGroups(state.meshes).reduce((sum, group) => sum + group.ranks.length, 0);
    for (const view of this._views) {
      if (view.name === DEBUG) {
        setText(view.tab, paused > 0 ? `${DEBUG} (${paused})` : DEBUG);
      }
      if (!view.node.hidden) {
        view.poll(state);
      }
    }
  }

  /** @param {State} state the first one, which says what the server offers */
  _begin(state) {
    const { ask } = this._server;
    const meshes = new MeshesView(ask, { nothing: state.span === null ? EMPTY_LIVE : EMPTY_RECORDED });
    this._add("Explorer", meshes.node, (now) => {
      meshes.update(new Map(now.meshes.map((mesh) => [mesh.uid, mesh])));
      meshes.tick();
    });
    const lines = new LinesView(ask, "Lines of all ranks");
    let wasShown = false;
    this._add("Lines", lines.node, () => {
      if (!wasShown) {
        wasShown = true;
        lines.show({ mesh: null, cell: null, ranks: null });
      } else {
        lines.follow();
      }
    });
    const sql = new SqlView((text) => this._server.query(text));
    this._add("SQL", sql.node, () => sql.follow(this._server.at));
    const debug = new DebugView(ask);
    this._add(DEBUG, debug.node, (now) => debug.update(now.meshes));
    const explained = new CaseView(() => this._server.explain());
    this._add("Explain", explained.node, () => explained.show(this._server.at));
    this._choose("Explorer");
  }

  /**
   * @param {string} name
   * @param {HTMLElement} node
   * @param {(state: State) => void} poll called once a second while it is shown
   */
  _add(name, node, poll) {
    const tab = button(name, () => this._choose(name));
    const id = `md-${name.toLowerCase()}`;
    setAttribute(tab, "role", "tab");
    setAttribute(tab, "aria-controls", id);
    const place = element("div", "md-view", { role: "tabpanel", id, "aria-label": name });
    place.append(node);
    place.hidden = true;
    tab.addEventListener("keydown", (event) => this._onKey(event));
    this._tabs.append(tab);
    this._places.append(place);
    this._views.push({ name, tab, node: place, poll });
  }

  /** @param {string} name */
  _choose(name) {
    for (const view of this._views) {
      const isChosen = view.name === name;
      view.node.hidden = !isChosen;
      setAttribute(view.tab, "aria-selected", String(isChosen));
      view.tab.tabIndex = isChosen ? 0 : -1;
      if (isChosen && this._state !== null) {
        view.poll(this._state);
      }
    }
  }

  /** @param {KeyboardEvent} event */
  _onKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) {
      return;
    }
    const at = this._views.findIndex(({ tab }) => tab === event.target);
    const next = this._views[(at + step + this._views.length) % this._views.length];
    if (next !== undefined) {
      this._choose(next.name);
      next.tab.focus();
    }
  }

  /** @param {number | null} at seconds after the first sample */
  _goTo(at) {
    this._server.at = at;
    void this.poll();
  }

  /** @param {string} text */
  _say(text) {
    setText(this._problem, text);
    this._problem.hidden = text === "";
  }
}
