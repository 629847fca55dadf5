/** Opens consoles of ranks: the choice of a rank, and the place of its console. */

import { ConsoleView } from "./console.js";
import { Outcome } from "./controls.js";
import { button, element } from "./dom.js";
import { parseCompletions, parseStanding } from "./protocol.js";

/** @typedef {import("./protocol.js").Standing} Standing */

/** A place for one console, which asks the kernel for everything. */
export class DebugPane {
  /** @param {import("./controls.js").Ask} ask */
  constructor(ask) {
    this._ask = ask;
    this.node = element("div", "mx-debug");
    this._outcome = new Outcome();
    this._place = element("div");
    this._detach = button("Close console", () => this.close());
    this._detach.title = "the rank stays paused";
    this._detach.hidden = true;
    this.node.append(this._outcome.node, this._place, this._detach);
    /** @type {ConsoleView | null} */
    this._view = null;
    /** @type {Standing | null} */
    this._standing = null;
    /** @type {import("./console.js").Entry[]} */
    this._entries = [];
    this._busy = false;
    this._opened = 0;
  }

  /** Whether a console of a paused rank is open. */
  get isOpen() {
    return this._standing !== null && !this._standing.over;
  }

  /**
   * Open the console of that rank; one that is not paused is paused first, where it runs.
   * @param {string} mesh uid
   * @param {number} rank
   */
  open(mesh, rank) {
    this.close();
    const opened = this._opened;
    this._outcome.say("opening …");
    this._ask({ do: "console", mesh, ranks: [rank] })
      .then((result) => {
        const standing = parseStanding(result);
        if (opened !== this._opened) {
          this._letGo(standing.console);
          return;
        }
        this._outcome.say("");
        this._entries = [];
        this._view = new ConsoleView({
          say: (text) => this._say(text),
          complete: (text) => this._complete(text),
        });
        this._place.replaceChildren(this._view.node);
        this._detach.hidden = false;
        this._setStanding(standing);
        this._view.focus();
      })
      .catch((/** @type {unknown} */ error) => {
        if (opened === this._opened) {
          this._outcome.fail(error);
        }
      });
  }

  /** Another client may have resumed the rank: ask, unless a command is running, whose answer will tell. */
  refresh() {
    const { _standing: standing } = this;
    if (standing === null || standing.over || this._busy) {
      return;
    }
    // A command may end it before the answer comes.
    const isCurrent = () => this._standing?.console === standing.console && !this._standing.over;
    this._ask({ do: "standing", console: standing.console })
      .then((result) => {
        if (isCurrent() && !this._busy) {
          this._setStanding(parseStanding(result));
        }
      })
      .catch((/** @type {unknown} */ error) => {
        if (isCurrent()) {
          this._note(error);
        }
      });
  }

  /** Close the console; the rank stays paused. */
  close() {
    this._opened++;
    if (this._standing !== null && !this._standing.over) {
      this._letGo(this._standing.console);
    }
    this._view = this._standing = null;
    this._busy = false;
    this._place.replaceChildren();
    this._detach.hidden = true;
    this._outcome.say("");
  }

  /** @param {number} console */
  _letGo(console) {
    this._ask({ do: "let_go", console }).catch((/** @type {unknown} */ error) => this._outcome.fail(error));
  }

  /** @param {string} text */
  _say(text) {
    const standing = this._standing;
    if (standing === null) {
      return;
    }
    this._busy = true;
    this._entries.push({ kind: "said", text: `${standing.prompt}${text}` });
    this._draw();
    this._ask({ do: "say", console: standing.console, text })
      .then((result) => {
        if (this._standing?.console === standing.console) {
          this._busy = false;
          this._setStanding(parseStanding(result));
        }
      })
      .catch((/** @type {unknown} */ error) => {
        if (this._standing?.console === standing.console) {
          this._busy = false;
          this._note(error);
        }
      });
  }

  /**
   * @param {string} text
   * @returns {Promise<readonly string[]>}
   */
  async _complete(text) {
    const standing = this._standing;
    return standing === null ? [] : parseCompletions(await this._ask({ do: "complete", console: standing.console, text }));
  }

  /** @param {Standing} standing */
  _setStanding(standing) {
    this._standing = standing;
    if (standing.text) {
      this._entries.push({ kind: "answer", text: standing.text });
    }
    if (standing.over) {
      this._entries.push({ kind: "note", text: standing.note });
    }
    this._draw();
  }

  /** @param {unknown} error */
  _note(error) {
    this._entries.push({ kind: "note", text: error instanceof Error ? error.message : String(error) });
    this._draw();
  }

  _draw() {
    const standing = this._standing;
    if (standing !== null && this._view !== null) {
      const { title, prompt, over, source } = standing;
      this._view.update({ title, prompt, over, source, busy: this._busy, entries: [...this._entries] });
    }
  }
}

/**
 * Ranks of one mesh that stand in one place, and the button to the console of one of them.
 * @typedef {object} Ranks
 * @property {string} mesh uid
 * @property {readonly number[]} ranks
 * @property {readonly string[]} names of each, as `gpus=3`
 */

/**
 * A button for the console of one of these ranks, with a choice where there are several.
 * @param {Ranks} group
 * @param {string} whose their common name
 * @param {(mesh: string, rank: number) => void} open
 * @returns {HTMLElement[]}
 */
export function consoleControls(group, whose, open) {
  const first = group.ranks[0];
  if (first === undefined) {
    return [];
  }
  const choice = element("select", "mx-choice", { "aria-label": `Which rank of ${whose}` });
  choice.append(
    ...group.ranks.map((rank, at) =>
      element("option", "", { value: String(rank) }, group.names[at] || `rank ${rank}`),
    ),
  );
  const go = button("Console", () => open(group.mesh, Number(choice.value)));
  go.setAttribute("aria-label", `Console of ${whose}`);
  return group.ranks.length === 1 ? [go] : [go, choice];
}
