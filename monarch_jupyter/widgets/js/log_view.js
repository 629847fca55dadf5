/** Lines of ranks in a cell: paged, filtered, following new ones. */

import { LinesView } from "./line_list.js";
import { connectView } from "./requests.js";

/** @param {import("./requests.js").RenderProps} props */
function render({ model, el }) {
  const connection = connectView({ model, el }, { more: () => view.follow() });
  const mesh = String(model.get("mesh"));
  const cell = Number(model.get("cell"));
  const view = new LinesView((what) => connection.ask(what), mesh ? `Lines of ${mesh}` : "Lines of this cell");
  el.append(view.node);
  connection.begin(null);
  view.show({ mesh: mesh || null, cell: cell || null, ranks: null });
  return () => connection.end();
}

export default { render };
