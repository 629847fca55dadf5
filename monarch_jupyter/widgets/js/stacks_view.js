/** Stacks of ranks: groups of ranks in the same place, their stack, and a console. */

import { DebugPane, consoleControls } from "./console_host.js";
import { element } from "./dom.js";
import { connectView } from "./requests.js";

/** @typedef {import("./console_host.js").Ranks & {head: string, stack: string, open: boolean}} Group */
/** @typedef {{name: string, size: string, headline: string, groups: readonly Group[]}} MeshStacks */

/** @param {import("./requests.js").RenderProps} props */
function render({ model, el }) {
  const connection = connectView({ model, el }, {});
  const node = element("section", "mx-explorer", { "aria-label": "Stacks" });
  const pane = new DebugPane((what) => connection.ask(what));
  for (const mesh of /** @type {MeshStacks[]} */ (model.get("meshes"))) {
    const head = element("p", "mx-tally");
    head.append(element("strong", "", {}, mesh.name), element("span", "mx-muted", {}, mesh.size), mesh.headline);
    node.append(head, ...mesh.groups.map((group) => groupNode(group, pane)));
  }
  node.append(pane.node);
  el.append(node);
  connection.begin(null);
  return () => {
    pane.close();
    connection.end();
  };
}

/**
 * @param {Group} group
 * @param {DebugPane} pane
 */
function groupNode(group, pane) {
  const node = element("div", "mx-group");
  const details = element("details", "mx-grow");
  details.open = group.open;
  const text = { tabindex: "0", "aria-label": `Stack of ${group.head}`, role: "group" };
  details.append(element("summary", "", {}, group.head), element("pre", "mx-stack", text, group.stack));
  const bar = element("span", "mx-actions");
  bar.append(...consoleControls(group, group.head, (mesh, rank) => pane.open(mesh, rank)));
  node.append(details, bar);
  return node;
}

export default { render };
