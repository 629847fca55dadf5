/**
 * Bars of slow work in the cell that waits for it: name, progress, duration, late ranks.
 *
 * Runs in: the page, through anywidget. As the explorer does, every view keeps its own copy, and changes elements in
 * place; seconds go on by the page's clock. A bar is not announced, because it changes too often.
 */

import { count, duration, element, setAttribute, setText } from "./dom.js";
import { connectView } from "./requests.js";
import { reduceBars } from "./views.js";

/** @typedef {import("./protocol.js").Bar} Bar */

class BarView {
  constructor() {
    this.node = element("div", "mx-work");
    this._bar = element("progress");
    this._what = element("strong");
    this._words = element("span", "mx-muted");
    this.node.append(this._bar, this._what, this._words);
    /** @type {Bar | null} */
    this._shown = null;
    this._began = 0;
  }

  /** @param {Bar} bar */
  update(bar) {
    if (bar !== this._shown) {
      this._shown = bar;
      this._began = Date.now() - bar.for_s * 1000;
    }
    this._bar.max = bar.total ?? 1;
    if (bar.done > 0 && bar.total !== null) {
      this._bar.value = bar.done;
    } else {
      this._bar.removeAttribute("value"); // It moves by itself: until the first part is done, or to the end.
    }
    setAttribute(this._bar, "aria-label", bar.what);
    setText(this._what, bar.what);
    this.tick();
  }

  tick() {
    const bar = this._shown;
    if (bar !== null) {
      const late = bar.late === "" ? "" : `; waiting for ${bar.late}`;
      const seconds = duration(Math.round((Date.now() - this._began) / 1000)).replace(".0 s", " s");
      const of = bar.total === null ? "" : ` of ${bar.total.toLocaleString("en")}`;
      const done = `${bar.done.toLocaleString("en")}${of} ${bar.unit}`;
      setAttribute(this._bar, "aria-valuetext", `${done}${late}`);
      setText(this._words, `${done}, ${seconds}${late}`);
    }
  }
}

export class BarsView {
  constructor() {
    this.node = element("section", "mx-explorer mx-progress", { role: "group", "aria-label": "Progress" });
    /** @type {Map<string, BarView>} */
    this._views = new Map();
  }

  /** @param {ReadonlyMap<string, Bar>} bars */
  update(bars) {
    for (const [key, view] of this._views) {
      if (!bars.has(key)) {
        view.node.remove();
        this._views.delete(key);
      }
    }
    for (const [key, bar] of bars) {
      let view = this._views.get(key);
      if (view === undefined) {
        view = new BarView();
        this._views.set(key, view);
        this.node.append(view.node);
      }
      view.update(bar);
    }
    setAttribute(this.node, "aria-label", `Progress: ${count(bars.size, "bar")}`);
  }

  /** Once a second, for the times. */
  tick() {
    for (const view of this._views.values()) {
      view.tick();
    }
  }
}

/** @param {import("./requests.js").RenderProps} props */
function render({ model, el }) {
  /** @type {import("./views.js").BarsShown | null} */
  let known = null;
  const shown = new BarsView();
  const take = (/** @type {import("./protocol.js").Streamed} */ message) => {
    const { view, sync } = reduceBars(known, message);
    if (sync) {
      connection.sync();
    }
    if (view !== null && view !== known && !view.stale) {
      shown.update(view.bars);
    }
    known = view;
  };
  const connection = connectView({ model, el }, { take });
  el.append(shown.node);
  connection.begin(model.get("first"));
  const timer = setInterval(() => shown.tick(), 1000);
  return () => {
    clearInterval(timer);
    connection.end();
  };
}

export default { render };
