/** Buttons that act on ranks, and the line with the outcome. */

import { button, element, setText } from "./dom.js";

/**
 * Carries out a request. `offers`: whether requests of a kind are answered; without it, all are. `isRecorded`: whether
 * the answers are of one time of a recording; without it, they are live.
 * @typedef {((what: import("./protocol.js").Request) => Promise<unknown>) & {offers?: (what: string) => boolean, isRecorded?: () => boolean}} Ask
 */

/**
 * Whether requests of that kind are answered, so that a view shows their button.
 * @param {Ask} ask
 * @param {import("./protocol.js").Request["do"]} what
 */
export function offers(ask, what) {
  return ask.offers === undefined || ask.offers(what);
}

/**
 * Whether answers are of one time of a recording.
 * @param {Ask} ask
 */
export function isRecorded(ask) {
  return ask.isRecorded?.() ?? false;
}

/** One line for the outcome of the last request; announced when it changes. */
export class Outcome {
  constructor() {
    this.node = element("p", "mx-outcome", { role: "status" });
    this.node.hidden = true;
  }

  /** @param {string} text */
  say(text) {
    this._show(text, "said");
  }

  /** @param {unknown} error */
  fail(error) {
    this._show(error instanceof Error ? error.message : String(error), "failed");
  }

  /**
   * @param {string} text
   * @param {string} kind
   */
  _show(text, kind) {
    this.node.hidden = text === "";
    this.node.dataset.kind = kind;
    setText(this.node, text);
  }
}

/**
 * Show that a request is under way, then its outcome.
 * @param {Outcome} outcome
 * @param {string} meanwhile
 * @param {Promise<unknown>} promise whose result is one line
 */
export function report(outcome, meanwhile, promise) {
  outcome.say(meanwhile);
  promise.then((result) => outcome.say(String(result))).catch((/** @type {unknown} */ error) => outcome.fail(error));
}

/** A button that acts on the second press only, and forgets the first press on blur. */
export class ConfirmButton {
  /**
   * @param {string} label
   * @param {() => string} question what the button says after the first press
   * @param {() => void} act
   */
  constructor(label, question, act) {
    this._label = label;
    this._asked = false;
    this.node = button(label, () => {
      if (this._asked) {
        this._reset();
        act();
      } else {
        this._asked = true;
        this.node.classList.add("mx-sure");
        setText(this.node, question());
      }
    });
    this.node.addEventListener("blur", () => this._reset());
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this._asked) {
        event.stopPropagation();
        this._reset();
      }
    });
  }

  _reset() {
    this._asked = false;
    this.node.classList.remove("mx-sure");
    setText(this.node, this._label);
  }
}
