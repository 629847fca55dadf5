/** The state of one rank and actions on it; works while a cell runs. */

import { ActorsView } from "./actors.js";
import { Outcome, ConfirmButton, offers, report } from "./controls.js";
import { DebugPane } from "./console_host.js";
import { button, count, doing, duration, element, endpointText, isAtWork, pointText, setAttribute, setText } from "./dom.js";
import { LinesView } from "./line_list.js";
import { RestartRankButton } from "./rank_restart.js";
import { RankUsage } from "./usage.js";

/** @typedef {import("./protocol.js").Mesh} Mesh */
/** @typedef {import("./protocol.js").Row} Row */

/** The host of a mesh on several, which does not say where a rank is. */
const SEVERAL = /^\d+ hosts$/;
const FACTS = ["state", "for", "process", "messages", "memory"];

export class RankDetails {
  /**
   * @param {import("./controls.js").Ask} ask
   * @param {import("./usage.js").UsageFeed} feed what the ranks of the mesh use
   */
  constructor(ask, feed) {
    this._ask = ask;
    this._feed = feed;
    this._usage = new RankUsage();
    this._usage.node.hidden = true;
    this.node = element("section", "mx-details");
    this.node.hidden = true;
    this._title = element("strong");
    this._facts = element("dl", "mx-facts");
    this._values = FACTS.map((name) => {
      const value = element("dd");
      this._facts.append(element("dt", "", {}, name), value);
      return value;
    });
    this._actors = new ActorsView(ask);
    this._outcome = new Outcome();
    this._stop = button("Stop its call", () => this._endCall());
    this._kill = new ConfirmButton("Kill process", () => `Kill pid ${this._row?.pid ?? "?"}?`, () => this._endProcess());
    this._restart = new RestartRankButton(ask, this._outcome);
    this._stacks = button("Stack", () => this._showStack());
    this._log = button("Lines", () => this._showLines());
    this._log.setAttribute("aria-expanded", "false");
    this._pane = new DebugPane(ask);
    this._console = button("Console", () => this.openConsole());
    this._lab = button("Debug in JupyterLab", () => this._debugInLab());
    this._lab.title = "JupyterLab's own debugger on this rank; press again to return it to the kernel";
    this._lab.setAttribute("aria-pressed", "false");
    this._console.hidden = !offers(ask, "console");
    this._lab.hidden = !offers(ask, "debug_in_lab");
    this._stop.hidden = !offers(ask, "stop");
    this._kill.node.hidden = !offers(ask, "kill");
    this._stacks.hidden = !offers(ask, "stacks");
    const bar = element("div", "mx-bar", { role: "toolbar", "aria-label": "Actions on this rank" });
    bar.append(this._console, this._lab, this._stop, this._kill.node, this._restart.node, this._stacks, this._log);
    this._stack = element("pre", "mx-stack", { tabindex: "0", "aria-label": "Stack" });
    this._stack.hidden = true;
    this._lines = new LinesView(ask, "Lines of this rank");
    this._lines.node.hidden = true;
    this.node.append(this._title, this._facts, this._usage.node, bar, this._outcome.node, this._actors.node, this._pane.node, this._stack, this._lines.node);
    /** @type {Mesh | null} */
    this._mesh = null;
    /** @type {Row | null} */
    this._row = null;
    this._began = 0;
  }

  /**
   * @param {Mesh} mesh
   * @param {Row | null} row none: no rank is chosen
   * @param {boolean} ended
   */
  show(mesh, row, ended) {
    const another = this._row?.rank !== row?.rank;
    if (row !== null && row !== this._row) {
      this._began = Date.now() - row.since_s * 1000;
    }
    this._mesh = mesh;
    this._row = row;
    this.node.hidden = row === null;
    if (row === null) {
      this._pane.close();
      this._actors.hide();
      return;
    }
    if (another) {
      this._pane.close();
      this._outcome.say("");
      this._stack.hidden = true;
      this._hideLines();
    } else if (!this._lines.node.hidden) {
      this._lines.follow();
    }
    const title = `${mesh.name} ${pointText(row.point)}`.trim();
    setAttribute(this.node, "aria-label", `${title} details`);
    setText(this._title, title);
    const live = !ended && row.pid !== null && row.state !== "failed" && row.state !== "stopped";
    this._stop.disabled = this._console.disabled = !live || !isAtWork(row);
    this._console.title = row.state === "paused" ? "open its console" : "pause it where it runs, and open its console";
    if (row.state !== "paused") {
      this._pane.refresh();
    }
    setAttribute(this._lab, "aria-pressed", String(mesh.debugged.includes(row.rank)));
    this._actors.show(mesh.uid, row.rank, live);
    this._kill.node.disabled = this._stacks.disabled = this._lab.disabled = !live;
    this._restart.show(mesh, row, ended);
    this._showFacts();
  }

  /** Once a second. */
  tick() {
    this._showFacts();
    this._actors.tick();
  }

  _showFacts() {
    const row = this._row;
    if (row === null) {
      return;
    }
    const again = row.restarts > 0 ? `, restarted ${count(row.restarts, "time")}` : "";
    const failed = row.errors > 0 ? `, ${row.errors} failed` : "";
    const host = this._mesh?.host ?? "";
    const where = host === "" || SEVERAL.test(host) ? "" : ` on ${host}`;
    const values = [
      doing(row),
      duration((Date.now() - this._began) / 1000),
      row.pid === null ? "none" : `pid ${row.pid}${where}${again}`,
      `${row.messages.toLocaleString("en")}${failed}`,
      row.rss_mib === null ? "unknown" : `${row.rss_mib.toFixed(0)} MiB`,
    ];
    this._values.forEach((node, i) => setText(node, values[i] ?? ""));
  }

  /** New figures of what ranks use have come, or another rank is shown. */
  showUsage() {
    if (this._row !== null) {
      this._usage.show(this._feed, this._row.rank);
    }
  }

  /** Open the console of the rank that is shown. */
  openConsole() {
    const { mesh, row } = this._chosen();
    this._pane.open(mesh.uid, row.rank);
  }

  /** It is off the page. */
  close() {
    this._pane.close();
  }

  _endCall() {
    const { mesh, row } = this._chosen();
    report(
      this._outcome,
      `ending ${endpointText(row)} …`,
      this._ask({ do: "stop", mesh: mesh.uid, ranks: [row.rank] }),
    );
  }

  _endProcess() {
    const { mesh, row } = this._chosen();
    report(this._outcome, "killing …", this._ask({ do: "kill", mesh: mesh.uid, ranks: [row.rank] }));
  }

  _debugInLab() {
    const { mesh, row } = this._chosen();
    report(
      this._outcome,
      "asking the rank's debugger …",
      this._ask({ do: "debug_in_lab", mesh: mesh.uid, ranks: [row.rank] }),
    );
  }

  _showStack() {
    const { mesh, row } = this._chosen();
    this._outcome.say("reading its stack …");
    this._ask({ do: "stacks", mesh: mesh.uid, ranks: [row.rank] })
      .then((result) => {
        if (row.rank === this._row?.rank) {
          this._outcome.say("");
          this._stack.hidden = false;
          setText(this._stack, String(result));
        }
      })
      .catch((/** @type {unknown} */ error) => this._outcome.fail(error));
  }

  _showLines() {
    if (!this._lines.node.hidden) {
      this._hideLines();
      return;
    }
    const { mesh, row } = this._chosen();
    this._lines.node.hidden = false;
    this._log.setAttribute("aria-expanded", "true");
    this._lines.show({ mesh: mesh.name, cell: null, ranks: [row.rank] });
  }

  _hideLines() {
    this._lines.node.hidden = true;
    this._log.setAttribute("aria-expanded", "false");
  }

  _chosen() {
    if (this._mesh === null || this._row === null) {
      throw new Error("no rank is chosen");
    }
    return { mesh: this._mesh, row: this._row };
  }
}
