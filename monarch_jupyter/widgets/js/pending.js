/**
 * Open requests of a page's views to their kernel, each answered once. No I/O: the caller passes `send`.
 */

/** @typedef {import("./protocol.js").Answer} Answer */
/** @typedef {import("./protocol.js").Request} Request */

/** The open requests of one view. */
export class PendingRequests {
  /**
   * @param {string} view tells the views of one widget apart
   * @param {(message: {type: "ask", view: string, id: number, what: Request}) => void} send
   */
  constructor(view, send) {
    this._view = view;
    this._send = send;
    this._last = 0;
    /** @type {Map<number, {resolve: (result: unknown) => void, reject: (why: Error) => void}>} */
    this._open = new Map();
  }

  /**
   * The result; an Error whose message is the kernel's one line if it is refused.
   * @param {Request} what
   * @returns {Promise<unknown>}
   */
  ask(what) {
    return new Promise((resolve, reject) => {
      const id = ++this._last;
      this._open.set(id, { resolve, reject });
      this._send({ type: "ask", view: this._view, id, what });
    });
  }

  /** @param {Answer} answer */
  onAnswer(answer) {
    const waiting = answer.view === this._view ? this._open.get(answer.id) : undefined;
    if (waiting === undefined) {
      return; // Another view's.
    }
    this._open.delete(answer.id);
    if (answer.error === null) {
      waiting.resolve(answer.result);
    } else {
      waiting.reject(new Error(answer.error));
    }
  }

  /**
   * Reject all open requests.
   * @param {string} why
   */
  end(why) {
    for (const { reject } of this._open.values()) {
      reject(new Error(why));
    }
    this._open.clear();
  }
}
