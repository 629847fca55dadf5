/** Paused ranks in the cell that ran into breakpoints: live, with a console a click away. */

import { Outcome, offers, report } from "./controls.js";
import { DebugPane, consoleControls } from "./console_host.js";
import { button, count, element, setText } from "./dom.js";
import { connectView } from "./requests.js";

/** @typedef {import("./console_host.js").Ranks & {name: string, where: string}} Group */

export class BreakpointsView {
  /** @param {import("./controls.js").Ask} ask */
  constructor(ask) {
    this._ask = ask;
    this.node = element("section", "mx-explorer mx-breakpoints", {
      "aria-label": "Breakpoints",
      "data-lm-suppress-shortcuts": "true",
    });
    this._status = element("p", "mx-tally", { role: "status" });
    this._list = element("ul", "mx-groups", { role: "list", "aria-label": "Paused ranks" });
    this._outcome = new Outcome();
    this._pane = new DebugPane(ask);
    this.node.append(this._status, this._list, this._outcome.node, this._pane.node);
    this._before = "";
  }

  /** @param {readonly Group[]} groups */
  update(groups) {
    const waits = groups.reduce((sum, { ranks }) => sum + ranks.length, 0);
    const verb = waits === 1 ? "waits" : "wait";
    setText(this._status, waits === 0 ? "No rank is paused here now." : `${count(waits, "rank")} ${verb} at a breakpoint`);
    this.node.dataset.state = waits === 0 ? "over" : "paused";
    this._pane.refresh();
    const written = JSON.stringify(groups);
    if (written !== this._before) {
      this._before = written;
      this._list.replaceChildren(...groups.map((group) => this._item(group)));
    }
    this._list.hidden = waits === 0;
  }

  /** @param {Group} group */
  _item(group) {
    const item = element("li", "mx-group", { role: "listitem" });
    item.append(element("strong", "", {}, group.name), " ", element("span", "", {}, `in ${group.where}`));
    const bar = element("span", "mx-actions");
    if (offers(this._ask, "console")) {
      bar.append(...consoleControls(group, group.name, (mesh, rank) => this._pane.open(mesh, rank)));
    }
    if (offers(this._ask, "resume")) {
      bar.append(this._continueButton(group));
    }
    item.append(" ", bar);
    return item;
  }

  /** @param {Group} group */
  _continueButton(group) {
    const go = button("Continue", () => {
      report(this._outcome, "…", this._ask({ do: "resume", mesh: group.mesh, ranks: group.ranks }));
    });
    go.setAttribute("aria-label", `Continue ${group.name}`);
    return go;
  }

  end() {
    this._pane.close();
  }
}

/** @param {import("./requests.js").RenderProps} props */
function render({ model, el }) {
  const connection = connectView({ model, el }, {});
  const view = new BreakpointsView((what) => connection.ask(what));
  const update = () => view.update(/** @type {Group[]} */ (model.get("groups")));
  model.on("change:groups", update);
  el.append(view.node);
  connection.begin(null);
  update();
  return () => {
    model.off("change:groups", update);
    view.end();
    connection.end();
  };
}

export default { render };
