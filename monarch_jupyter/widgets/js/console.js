/**
 * A console for one paused rank: commands and answers, an input line, and the source around the current line.
 *
 * The keys are those of a shell: up and down for earlier commands, Tab to complete, Enter to send; in an empty
 * line, and after Escape, Tab leaves. The console knows neither a kernel nor a widget: its owner passes a
 * Listener, which sends commands, and calls `update` with the state.
 */

import { button, element, setText } from "./dom.js";

/** @typedef {import("./protocol.js").Source} Source */
/**
 * The shown state. `busy`: a command runs; `over`: the rank has resumed.
 * @typedef {object} Standing
 * @property {string} title
 * @property {string} prompt
 * @property {boolean} busy
 * @property {boolean} over
 * @property {readonly Entry[]} entries
 * @property {Source | null} source
 */
/** An entry: a command is `said`, the debugger's output `answer`, a remark of the page `note`. @typedef {{readonly kind: string, readonly text: string}} Entry */
/**
 * Receives the commands.
 * @typedef {object} Listener
 * @property {(text: string) => void} say
 * @property {(text: string) => Promise<readonly string[]>} complete
 */

/** @type {readonly (readonly [command: string, label: string, help: string])[]} */
const BUTTONS = [
  ["next", "Next", "the next line of this function"],
  ["step", "Step", "the next line, also in what it calls"],
  ["return", "Return", "until this function returns"],
  ["up", "Up", "look at the caller"],
  ["down", "Down", "look at what was called"],
  ["where", "Where", "the frames"],
  ["continue", "Continue", "go on"],
];

/**
 * A line before and behind the caret when its last word becomes what all `matches` begin with.
 * @param {string} before
 * @param {readonly string[]} matches
 */
export function completed(before, matches) {
  let common = matches[0] ?? "";
  for (const match of matches) {
    while (!match.startsWith(common)) {
      common = common.slice(0, -1);
    }
  }
  return before.replace(/[\w.]*$/, (word) => (common.length > word.length ? common : word));
}

/** Earlier commands, and a line that is not sent yet. */
export class History {
  constructor() {
    /** @type {string[]} */
    this._said = [];
    this._at = 0;
    this._draft = "";
  }

  /** @param {string} text */
  add(text) {
    if (text !== "" && this._said[this._said.length - 1] !== text) {
      this._said.push(text);
    }
    this._at = this._said.length;
  }

  /**
   * The line above or below; null at either end.
   * @param {number} by
   * @param {string} shown the line that is left
   * @returns {string | null}
   */
  go(by, shown) {
    const to = this._at + by;
    if (to < 0 || to > this._said.length) {
      return null;
    }
    if (this._at === this._said.length) {
      this._draft = shown;
    }
    this._at = to;
    return this._said[to] ?? this._draft;
  }
}

export class ConsoleView {
  /** @param {Listener} listener */
  constructor(listener) {
    this._listener = listener;
    this._history = new History();
    /** @type {Standing} */
    this._standing = { title: "", prompt: "", busy: false, over: false, entries: [], source: null };
    /** @type {readonly Entry[]} */
    this._shown = [];
    this._asked = 0;
    this._leaves = false; // with the next Tab
    // Keys typed here are not commands of the notebook.
    this.node = element("section", "md-console", { tabindex: "-1", "data-lm-suppress-shortcuts": "true" });
    this._head = element("div", "md-head", { role: "status" });
    this._source = element("div", "md-source", { role: "group", "aria-label": "Source", tabindex: "0" });
    this._log = element("div", "md-log", { role: "log", "aria-label": "What was said", tabindex: "0" });
    this._bar = element("div", "md-bar", { role: "toolbar", "aria-label": "Commands" });
    this._buttons = BUTTONS.map(([command, label, help]) => {
      const made = button(label, () => this._say(command));
      made.title = `${command}: ${help}`;
      return made;
    });
    this._bar.append(...this._buttons);
    this._row = element("div", "md-row");
    this._prompt = element("span", "md-prompt", { "aria-hidden": "true" });
    this._input = element("input", "md-input", {
      type: "text",
      spellcheck: "false",
      autocomplete: "off",
      autocapitalize: "off",
      "aria-label": "Debugger command",
      placeholder: "p x, n, s, c, l, w, or a line of Python",
    });
    this._input.addEventListener("keydown", (event) => this._onKey(event));
    this._row.append(this._prompt, this._input);
    this._choices = element("div", "md-choices", { role: "status" });
    this.node.append(this._head, this._source, this._log, this._bar, this._row, this._choices);
  }

  focus() {
    this._input.focus();
  }

  /** @param {Standing} standing */
  update(standing) {
    const inside = this.node.contains(this.node.ownerDocument.activeElement);
    const { title, prompt, busy, over, entries, source } = standing;
    this._standing = standing;
    this.node.setAttribute("aria-label", `Debugger: ${title}`);
    this.node.dataset.state = over ? "over" : busy ? "busy" : "paused";
    setText(this._head, busy && !over ? `${title} … runs` : title);
    setText(this._prompt, prompt);
    this._input.readOnly = busy;
    for (const node of this._buttons) {
      node.setAttribute("aria-disabled", String(busy)); // disabled ones would lose the focus
    }
    this._row.hidden = this._bar.hidden = over;
    if (over) {
      setText(this._choices, "");
    }
    this._showEntries(entries);
    this._showSource(over ? null : source);
    if (over && inside) {
      this.node.focus(); // the focused element is hidden
    }
  }

  /** @param {readonly Entry[]} entries */
  _showEntries(entries) {
    const goesOn = this._shown.every(
      (entry, at) => entry.text === entries[at]?.text && entry.kind === entries[at].kind,
    );
    // A screen reader reads added entries, so earlier ones stay in place.
    const added = goesOn ? entries.slice(this._shown.length) : entries;
    const nodes = added.map((entry) => element("pre", `md-entry md-${entry.kind}`, {}, entry.text));
    if (goesOn) {
      this._log.append(...nodes);
    } else {
      this._log.replaceChildren(...nodes);
    }
    this._shown = entries;
    this._log.hidden = entries.length === 0;
    if (added.length > 0) {
      this._log.scrollTop = this._log.scrollHeight;
    }
  }

  /** @param {Source | null} source */
  _showSource(source) {
    this._source.hidden = source === null || source.lines.length === 0;
    if (source === null || this._source.hidden) {
      return;
    }
    const lines = source.lines.map((text, at) => {
      const number = source.first + at;
      const here = number === source.line;
      const line = element("div", here ? "md-line md-here" : "md-line", here ? { "aria-current": "step" } : {});
      line.append(
        element("span", "md-number", {}, `${here ? "→" : " "}${String(number).padStart(4)} `),
        element("span", "md-code", {}, text),
      );
      return line;
    });
    this._source.replaceChildren(...lines);
  }

  /** @param {string} text */
  _say(text) {
    if (this._standing.busy || this._standing.over) {
      return false;
    }
    this._history.add(text);
    setText(this._choices, "");
    this._listener.say(text);
    return true;
  }

  /** @param {KeyboardEvent} event */
  _onKey(event) {
    const left = this._leaves;
    this._leaves = false;
    if (event.altKey || event.metaKey || event.ctrlKey || event.isComposing) {
      return;
    }
    if (event.key === "Enter") {
      if (this._say(this._input.value)) {
        this._input.value = "";
      }
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const line = this._history.go(event.key === "ArrowUp" ? -1 : 1, this._input.value);
      if (line !== null) {
        this._input.value = line;
      }
    } else if (event.key === "Tab" && !event.shiftKey && this._input.value !== "" && !left) {
      this._complete();
    } else if (event.key === "Escape") {
      this._leaves = true;
      setText(this._choices, "");
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  _complete() {
    if (this._standing.busy) {
      return;
    }
    const asked = ++this._asked;
    const line = this._input.value;
    const caret = this._input.selectionStart ?? line.length;
    const before = line.slice(0, caret);
    this._listener
      .complete(before)
      .then((matches) => {
        if (asked !== this._asked || this._input.value !== line) {
          return; // more was typed meanwhile
        }
        const made = completed(before, matches);
        this._input.value = made + line.slice(caret);
        this._input.setSelectionRange(made.length, made.length);
        setText(this._choices, matches.length === 1 ? "" : matches.join("  ") || "no completions");
      })
      .catch((/** @type {unknown} */ error) => {
        setText(this._choices, error instanceof Error ? error.message : String(error));
      });
  }
}
