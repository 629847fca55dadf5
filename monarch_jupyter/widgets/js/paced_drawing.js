/**
 * Draws the latest state of a view, and leaves the page half of its time.
 *
 * A view of thousands of ranks takes longer to draw than the kernel takes to send the next change. If each change were
 * drawn, the page would fall further and further behind, with the output of cells. So changes that come while a
 * drawing is under way, or as long again after it, are drawn together.
 */

/**
 * The time and the timers of a page. `painted` calls back when the last change of the page is on the screen.
 * @typedef {object} Clock
 * @property {() => number} now in ms
 * @property {(callback: () => void) => void} painted
 * @property {(callback: () => void, ms: number) => void} later
 */

/** @type {Clock} */
const PAGE = {
  now: () => performance.now(),
  painted: (callback) => void requestAnimationFrame(() => setTimeout(callback)),
  later: (callback, ms) => void setTimeout(callback, ms),
};

/** A function that draws, called at most half of the time. */
export class PacedDrawing {
  /**
   * @param {() => void} draw draws the state of the moment at which it is called
   * @param {Clock} [clock]
   */
  constructor(draw, clock = PAGE) {
    this._draw = draw;
    this._clock = clock;
    this._isBusy = false;
    this._isAsked = false;
    this._hasEnded = false;
  }

  /** The state has changed: draw it now, or when the last drawing leaves time for it. */
  ask() {
    if (this._isBusy) {
      this._isAsked = true;
      return;
    }
    this._isBusy = true;
    const begun = this._clock.now();
    try {
      this._draw();
    } finally {
      this._clock.painted(() => this._clock.later(() => this._rested(), this._clock.now() - begun));
    }
  }

  /** Draw nothing more. */
  end() {
    this._hasEnded = true;
  }

  _rested() {
    const isAsked = this._isAsked && !this._hasEnded;
    this._isBusy = this._isAsked = false;
    if (isAsked) {
      this.ask();
    }
  }
}
