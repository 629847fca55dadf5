/** What ranks have written, in a cell of its own: paged, filtered, following what comes. */

import { LinesView } from "./line_list.js";
import { talk } from "./requests.js";

/** @param {import("./requests.js").RenderProps} props */
function render({ model, el }) {
  const line = talk({ model, el }, { more: () => view.follow() });
  const mesh = String(model.get("mesh"));
  const cell = Number(model.get("cell"));
  const view = new LinesView((what) => line.ask(what), mesh ? `Lines of ${mesh}` : "Lines of this cell");
  el.append(view.node);
  line.begin(null);
  view.show({ mesh: mesh || null, cell: cell || null, ranks: null });
  return () => line.end();
}

export default { render };
