/**
 * Lines of ranks, a page at a time: equal lines of several ranks are folded, and a click unfolds them.
 *
 * The kernel has every line on disk; a page of them is requested when it is shown, so that 100,000 lines
 * cost the browser no more than a few hundred.
 */

import { coloured } from "./ansi.js";
import { button, count, element, setText } from "./dom.js";
import { parseLines } from "./protocol.js";

/** @typedef {import("./protocol.js").Lines} Lines */
/** @typedef {import("./protocol.js").Fold} Fold */
/**
 * Whose lines: of one mesh by name (null: of all), that one cell caused (null: any), of these ranks (null: all).
 * @typedef {{mesh: string | null, cell: number | null, ranks: readonly number[] | null}} Subject
 */

const PAUSE_MS = 300;

export class LinesView {
  /**
   * @param {import("./controls.js").Ask} ask
   * @param {string} label
   */
  constructor(ask, label) {
    this._ask = ask;
    /** @type {Subject} */
    this._subject = { mesh: null, cell: null, ranks: null };
    /** @type {number | null} the page that is shown; null follows the last one */
    this._page = null;
    this._pages = 1;
    this._asked = 0;
    this._apart = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this._soon = undefined;
    this.node = element("section", "mx-lines", { "aria-label": label });
    this._status = element("span", "mx-muted", { role: "status" });
    this._search = element("input", "mx-search", {
      type: "search",
      "aria-label": "Only lines that match this regular expression",
      placeholder: "filter (regular expression)",
    });
    this._search.addEventListener("change", () => this._go(null));
    // Keys typed here are not commands of the notebook.
    this._search.addEventListener("keydown", (event) => event.stopPropagation());
    this._first = button("Oldest", () => this._go(1));
    this._before = button("Older", () => this._go(this._shown() - 1));
    this._after = button("Newer", () => this._go(this._shown() + 1));
    this._last = button("Newest", () => this._go(null));
    this._fold = button("By rank", () => {
      this._apart = !this._apart;
      this._fold.setAttribute("aria-pressed", String(this._apart));
      this._draw();
    });
    this._fold.setAttribute("aria-pressed", "false");
    const bar = element("div", "mx-bar", { role: "toolbar", "aria-label": `${label}: pages` });
    bar.append(this._first, this._before, this._after, this._last, this._fold, this._search, this._status);
    this._list = element("div", "mx-page", { role: "log", "aria-live": "off", "aria-label": label, tabindex: "0" });
    this._list.dataset.lmSuppressShortcuts = "true";
    this.node.append(bar, this._list);
    /** @type {Lines | null} */
    this._lines = null;
  }

  /** @param {Subject} subject */
  show(subject) {
    this._subject = subject;
    this._go(null);
  }

  /** Reload the newest page, if it is shown; after a short delay that joins several requests. */
  follow() {
    this._soon ??= setTimeout(() => {
      this._soon = undefined;
      if (this._page === null && this.node.isConnected && !this.node.hidden) {
        this._go(null);
      }
    }, PAUSE_MS);
  }

  _shown() {
    return this._page ?? this._pages;
  }

  /** @param {number | null} page */
  _go(page) {
    const asked = ++this._asked;
    this._page = page !== null && page >= this._pages ? null : page;
    this._ask({ do: "lines", ...this._subject, grep: this._search.value, page: this._page })
      .then((result) => {
        if (asked === this._asked) {
          this._lines = parseLines(result);
          this._draw();
        }
      })
      .catch((/** @type {unknown} */ error) => {
        if (asked === this._asked) {
          this._status.classList.add("mx-bad");
          setText(this._status, error instanceof Error ? error.message : String(error));
        }
      });
  }

  _draw() {
    const lines = this._lines;
    if (lines === null) {
      return;
    }
    this._pages = lines.pages;
    const at = this._shown();
    this._first.disabled = this._before.disabled = at <= 1;
    this._after.disabled = this._last.disabled = at >= lines.pages;
    this._status.classList.remove("mx-bad");
    const what = lines.total === 0 ? "no lines" : `${range(lines)} of ${count(lines.total, "line")}`;
    const lost = lines.given_up === 0 ? "" : `; ${count(lines.given_up, "older line")} dropped`;
    setText(this._status, what + lost);
    this._list.replaceChildren(
      ...lines.folds.flatMap((fold) => (this._apart ? fold.each.map((line) => alone(fold, line)) : [together(fold)])),
    );
    if (this._page === null) {
      this._list.scrollTop = this._list.scrollHeight;
    }
  }
}

/** @param {Lines} lines */
function range(lines) {
  return `${lines.first.toLocaleString("en")} to ${lines.last.toLocaleString("en")}`;
}

/** @param {Fold} fold */
function together(fold) {
  const node = element("div", "mx-fold");
  const [only] = fold.each;
  if (fold.each.length === 1 && only !== undefined) {
    node.append(alone(fold, only));
    return node;
  }
  const open = button(`[${fold.points}] ×${fold.each.length}`, () => {
    const inside = node.querySelector(".mx-each");
    open.setAttribute("aria-expanded", String(inside === null));
    if (inside === null) {
      const list = element("div", "mx-each");
      list.append(...fold.each.map((line) => alone(fold, line)));
      node.append(list);
    } else {
      inside.remove();
    }
  }, "mx-tag mx-unfold");
  open.setAttribute("aria-expanded", "false");
  const line = element("div", "mx-line");
  line.append(open, content(fold));
  node.append(line);
  return node;
}

/**
 * @param {Fold} fold
 * @param {{where: string, at: number}} line
 */
function alone(fold, line) {
  const node = element("div", "mx-line");
  const at = new Date(line.at * 1000);
  const time = element("time", "mx-time", { datetime: at.toISOString() }, at.toLocaleTimeString("en-GB"));
  node.append(time, element("span", "mx-tag", {}, line.where ? `[${line.where}]` : ""), content(fold));
  return node;
}

/** @param {Fold} fold */
function content(fold) {
  const node = element("span", "mx-text");
  node.dataset.stream = fold.stream;
  if (fold.stream === "stderr") {
    node.append(element("span", "mx-stream", {}, "stderr "));
  }
  node.append(...coloured(fold.text));
  return node;
}
