/** The case file of a fault or hang, read when the view is opened, at each time of a recording, and on demand. */

import { Outcome } from "./controls.js";
import { button, element, setText } from "./dom.js";

export class CaseView {
  /** @param {() => Promise<string>} explain */
  constructor(explain) {
    this._explain = explain;
    this.node = element("section", "mx-explorer", { "aria-label": "Explain" });
    this._outcome = new Outcome();
    this._text = element("pre", "md-case", { tabindex: "0", "aria-label": "Case file" });
    this.node.append(button("Read again", () => void this.read()), this._outcome.node, this._text);
    /** @type {number | null | undefined} the time that was read; not yet */
    this._at = undefined;
    this._asked = 0;
  }

  /**
   * Read it, once for each time.
   * @param {number | null} at seconds after the first sample of a recording; null: live, or the last sample
   */
  show(at) {
    if (at !== this._at) {
      this._at = at;
      void this.read();
    }
  }

  /** Read it. */
  async read() {
    const asked = ++this._asked;
    this._outcome.say("reading the state and stacks of all ranks …");
    try {
      const found = await this._explain();
      if (asked === this._asked) {
        setText(this._text, found);
        this._outcome.say("");
      }
    } catch (error) {
      if (asked === this._asked) {
        this._outcome.fail(error);
      }
    }
  }
}
