/** Paused ranks of all meshes on the dashboard, and consoles for them where the server offers these. */

import { BreakpointsView } from "./breakpoints.js";
import { offers } from "./controls.js";
import { element, pointText } from "./dom.js";

/** @typedef {import("./breakpoints.js").Group} Group */
/** @typedef {import("./protocol.js").Mesh} Mesh */

const ONLY_READS = "This page only reads. To continue a rank or to open its console, use the page that monarch dashboard --owner prints, or type monarch debug in a terminal.";

export class DebugView {
  /** @param {import("./controls.js").Ask} ask */
  constructor(ask) {
    this._ranks = new BreakpointsView(ask);
    this._hint = element("p", "mx-muted", {}, ONLY_READS);
    this._hint.hidden = offers(ask, "console");
    this.node = element("div");
    this.node.append(this._ranks.node, this._hint);
  }

  /** @param {readonly Mesh[]} meshes */
  update(meshes) {
    this._ranks.update(pausedGroups(meshes));
  }
}

/**
 * Paused ranks of a mesh at one place, together.
 * @param {readonly Mesh[]} meshes
 * @returns {Group[]}
 */
export function pausedGroups(meshes) {
  return meshes.flatMap((mesh) => {
    /** @type {Map<string, import("./protocol.js").Row[]>} */
    const places = new Map();
    for (const row of mesh.rows) {
      if (row.state === "paused") {
        const where = row.where ?? "code without source";
        places.set(where, [...(places.get(where) ?? []), row]);
      }
    }
    return [...places].map(([where, rows]) => {
      const names = rows.map((row) => pointText(row.point));
      const more = rows.length > 1 ? ` and ${rows.length - 1} more` : "";
      const name = `${mesh.name} ${names[0] ?? ""}`.trim() + more;
      return { mesh: mesh.uid, ranks: rows.map(({ rank }) => rank), names, name, where };
    });
  });
}
