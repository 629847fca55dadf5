/**
 * The console of `%monarch debug NAME`, in a cell.
 *
 * Runs in: the page, through anywidget. The model keeps everything that is shown, so a page that is loaded
 * again, or a second view, shows the same.
 */

import { ConsoleView } from "./console.js";
import { parseSource } from "./protocol.js";

const SHOWN = ["title", "prompt", "busy", "over", "entries", "source"];
const LOST = "the kernel has ended or restarted, and with it this console";

/** @param {import("./requests.js").RenderProps} props */
function render({ model, el }) {
  let asked = 0;
  let lost = false;
  /** @type {Map<number, {resolve: (matches: string[]) => void, reject: (why: Error) => void}>} */
  const open = new Map();
  const view = new ConsoleView({
    say: (text) => model.send({ type: "command", text }),
    complete: (text) =>
      new Promise((resolve, reject) => {
        open.set(++asked, { resolve, reject });
        model.send({ type: "complete", text, id: asked });
      }),
  });
  const update = () => {
    const entries = /** @type {import("./console.js").Entry[]} */ (model.get("entries"));
    const source = model.get("source");
    view.update({
      title: String(model.get("title")),
      prompt: String(model.get("prompt")),
      busy: model.get("busy") === true,
      over: lost || model.get("over") === true,
      entries: lost && model.get("over") !== true ? [...entries, { kind: "note", text: LOST }] : entries,
      source: source === null ? null : parseSource(source),
    });
  };
  const onMessage = (/** @type {unknown} */ content) => {
    const message = /** @type {{type: string, id: number, matches: string[]}} */ (content);
    if (message.type === "completions") {
      open.get(message.id)?.resolve(message.matches);
      open.delete(message.id);
    }
  };
  // The notebook reports that the model has no kernel any more.
  const onCommEnded = () => {
    lost = true;
    for (const { reject } of open.values()) {
      reject(new Error(LOST));
    }
    open.clear();
    update();
  };
  for (const name of SHOWN) {
    model.on(`change:${name}`, update);
  }
  model.on("msg:custom", onMessage);
  model.on("comm_live_update", onCommEnded);
  el.append(view.node);
  update();
  return () => {
    for (const name of SHOWN) {
      model.off(`change:${name}`, update);
    }
    model.off("msg:custom", onMessage);
    model.off("comm_live_update", onCommEnded);
  };
}

export default { render };
