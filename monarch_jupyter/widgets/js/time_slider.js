/** A slider through the time of a recording. Hidden while the state is live. */

import { button, duration, element, setText } from "./dom.js";

const PLAY_MS = 1000; // between two times that are shown while it plays
const STEP_S = 0.1;

export class TimeSlider {
  /** @param {(at: number | null) => void} go to so many seconds after the first sample; null: to the last one */
  constructor(go) {
    this._go = go;
    this.node = element("section", "md-time", { "aria-label": "Time of the recording" });
    this.node.hidden = true;
    this._range = element("input", "md-range", { type: "range", min: "0", step: String(STEP_S), "aria-label": "Seconds after the first sample" });
    this._range.addEventListener("input", () => this._move(Number(this._range.value)));
    this._play = button("Play", () => this._toggle());
    this._play.setAttribute("aria-pressed", "false");
    this._reading = element("output", "mx-muted");
    this.node.append(this._play, this._range, this._reading);
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this._timer = undefined;
    this._length = 0;
    this._first = 0;
  }

  /** @param {import("./dashboard_server.js").State} state */
  show({ span, now }) {
    this.node.hidden = span === null;
    if (span === null) {
      return;
    }
    this._first = span.first;
    this._length = span.last - span.first;
    this._range.max = (Math.ceil(this._length / STEP_S) * STEP_S).toFixed(1);
    if (this._timer === undefined && document.activeElement !== this._range) {
      this._range.value = (now - span.first).toFixed(1);
    }
    this._read();
  }

  /** @param {number} at */
  _move(at) {
    this._read();
    this._go(at >= this._length ? null : at);
  }

  _toggle() {
    if (this._timer !== undefined) {
      this._stop();
      return;
    }
    if (Number(this._range.value) >= this._length) {
      this._range.value = "0";
    }
    this._play.setAttribute("aria-pressed", "true");
    setText(this._play, "Pause");
    this._timer = setInterval(() => {
      const at = Number(this._range.value) + PLAY_MS / 1000;
      this._range.value = String(at);
      this._move(at);
      if (at >= this._length) {
        this._stop();
      }
    }, PLAY_MS);
  }

  _stop() {
    clearInterval(this._timer);
    this._timer = undefined;
    this._play.setAttribute("aria-pressed", "false");
    setText(this._play, "Play");
  }

  _read() {
    const at = Number(this._range.value);
    const clock = new Date((this._first + at) * 1000).toLocaleTimeString("en-GB");
    setText(this._reading, `${clock}, ${duration(at)} of ${duration(this._length)}`);
  }
}
