/**
 * One view of a widget and its kernel: messages come in order, pending get their answers. When the kernel is gone the
 * view keeps its last picture and says so.
 */

import { element, setText } from "./dom.js";
import { PendingRequests } from "./pending.js";
import { parse } from "./protocol.js";

/**
 * The props of a view of anywidget; of its model only the used part.
 * @typedef {object} Model
 * @property {(name: string) => unknown} get
 * @property {(content: unknown) => void} send
 * @property {(event: string, callback: (content: unknown) => void) => void} on
 * @property {(event: string, callback: (content: unknown) => void) => void} off
 */
/** @typedef {{model: Model, el: HTMLElement}} RenderProps */
/**
 * Handlers of a view: `take` for its stream, `more` when there are more lines, `lost` when its kernel is gone (true) or is
 * there again (false).
 * @typedef {object} Handlers
 * @property {(message: import("./protocol.js").Streamed) => void} [take]
 * @property {() => void} [more]
 * @property {(lost: boolean) => void} [lost]
 */

/** The event of ipywidgets when the comm of a model ends, as at a restart of the kernel. */
const COMM_ENDED = "comm_live_update";
const GONE = "the kernel that made this view is gone";

/**
 * @param {RenderProps} props
 * @param {Handlers} handlers
 */
export function connectView({ model, el }, handlers) {
  const view = Math.random().toString(36).slice(2);
  const pending = new PendingRequests(view, (message) => model.send(message));
  const notice = element("p", "mx-lost", { role: "status" });
  notice.hidden = true;
  el.append(notice);
  let isLost = false;
  const onMessage = (/** @type {unknown} */ content) => {
    if (isLost) {
      setLost(false); // The comm has been taken up again.
    }
    const message = parse(content);
    if (message.type === "answer") {
      pending.onAnswer(message);
    } else if (message.type === "more") {
      handlers.more?.();
    } else {
      handlers.take?.(message);
    }
  };
  const onCommEnded = () => {
    if (!isLost) {
      pending.end(GONE);
      setLost(true);
    }
  };
  const setLost = (/** @type {boolean} */ lost) => {
    isLost = lost;
    say(lost ? `Not live: ${GONE}. This is what it showed last.` : "");
    handlers.lost?.(lost);
  };
  /** @param {string} text */
  const say = (text) => {
    notice.hidden = text === "";
    setText(notice, text);
  };
  return {
    say,
    /**
     * @param {import("./protocol.js").Request} what
     * @returns {Promise<unknown>}
     */
    ask: (what) => (isLost ? Promise.reject(new Error(GONE)) : pending.ask(what)),
    sync: () => model.send({ type: "sync", view }),
    /** @param {unknown} first the message to show before the stream begins */
    begin(first) {
      if (first !== null && first !== undefined) {
        onMessage(first);
      }
      model.on("msg:custom", onMessage);
      model.on(COMM_ENDED, onCommEnded);
      model.send({ type: "sync", view });
    },
    end() {
      model.off("msg:custom", onMessage);
      model.off(COMM_ENDED, onCommEnded);
      pending.end("this view is closed");
      if (!isLost) {
        model.send({ type: "leave", view });
      }
    },
  };
}
