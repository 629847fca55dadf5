/**
 * The mesh explorer in a cell: a grid of ranks by state, live while a cell runs, with actions on them.
 *
 * Runs in: the page, through anywidget. Every view keeps its own copy of the meshes, from a snapshot and the
 * deltas after it, and asks for a new snapshot when it missed one.
 */

import { element, setAttribute, setText } from "./dom.js";
import { MeshView } from "./mesh.js";
import { PacedDrawing } from "./paced_drawing.js";
import { requestSource } from "./resuming.js";
import { connectView } from "./requests.js";
import { EMPTY, reduce } from "./views.js";

/** @typedef {import("./protocol.js").Mesh} Mesh */

/** All meshes of a view, or the one it is about. */
export class MeshesView {
  /**
   * @param {import("./controls.js").Ask} ask
   * @param {{only?: string, nothing?: string}} [options] `only`: uid of the mesh to show
   */
  constructor(ask, options = {}) {
    this._ask = ask;
    this._only = options.only ?? "";
    this._nothing = options.nothing ?? "No meshes. Make one with %monarch spawn workers gpus=8";
    this.node = element("section", "mx-explorer", { "aria-label": "Mesh explorer" });
    this._empty = element("p", "mx-empty", { role: "status" });
    this.node.append(this._empty);
    /** @type {Map<string, MeshView>} */
    this._views = new Map();
  }

  /** @param {ReadonlyMap<string, Mesh>} meshes */
  update(meshes) {
    const shown = [...meshes.values()].filter((mesh) => !this._only || mesh.uid === this._only);
    for (const mesh of shown) {
      const view = this._views.get(mesh.uid);
      if (view === undefined) {
        const made = new MeshView(mesh, this._ask);
        this._views.set(mesh.uid, made);
        this.node.append(made.node);
      } else {
        view.update(mesh);
      }
    }
    const [first] = this._only ? shown : [];
    if (first !== undefined) {
      setAttribute(this.node, "aria-label", `Mesh explorer of ${first.name}`);
    }
    for (const [uid, view] of this._views) {
      if (shown.some((mesh) => mesh.uid === uid)) {
        continue;
      }
      if (this._only) {
        view.end();
      } else {
        view.close();
        view.node.remove();
        this._views.delete(uid);
      }
    }
    const nothing = this._only ? "This mesh has stopped." : this._nothing;
    setText(this._empty, this._views.size === 0 ? nothing : "");
    this._empty.hidden = this._views.size > 0;
  }

  /**
   * Show another mesh in its place: it was restarted.
   * @param {string} only its uid
   */
  follow(only) {
    if (only !== this._only) {
      for (const [uid, view] of this._views) {
        view.close();
        view.node.remove();
        this._views.delete(uid);
      }
      this._only = only;
    }
  }

  /** It is off the page. */
  close() {
    for (const view of this._views.values()) {
      view.close();
    }
  }

  /** Once a second, for the times. */
  tick() {
    for (const view of this._views.values()) {
      view.tick();
    }
  }
}

/** @param {import("./requests.js").RenderProps} props */
function render({ model, el }) {
  let only = String(model.get("only"));
  let known = EMPTY;
  const take = (/** @type {import("./protocol.js").Streamed} */ message) => {
    const { view, sync } = reduce(known, message);
    if (sync) {
      connection.sync();
    }
    const isChanged = view.meshes !== known.meshes;
    known = view;
    if (isChanged) {
      drawing.ask();
    }
  };
  /** @type {import("./resuming.js").Source | null} */
  let source = null;
  let unwatch = () => {};
  // The kernel has restarted. The next one has no comm with this view, but the side panel has one with it.
  const lost = (/** @type {boolean} */ isLost) => {
    unwatch();
    source = isLost ? requestSource(el) : null;
    unwatch = source?.watch(showFromSource) ?? (() => {});
    showFromSource();
  };
  let wasKnown = false;
  const showFromSource = () => {
    const meshes = source?.meshes() ?? null;
    // A mesh that was known and is missing has ended; before that, no kernel has attached to it yet.
    wasKnown = meshes !== null && (only === "" || wasKnown || meshes.has(only));
    if (meshes !== null && wasKnown) {
      connection.say("");
      shown.update(meshes);
    } else if (source !== null) {
      const remedy = only === "" ? "%load_ext monarch_jupyter" : "%monarch attach, if the mesh was kept,";
      connection.say(`Not live: the kernel that made this view is gone. ${remedy} makes it live again.`);
    }
  };
  const connection = connectView({ model, el }, { take, lost });
  const shown = new MeshesView((what) => source?.ask(what) ?? connection.ask(what), { only });
  // A source shows its own meshes, and messages of the kernel come no more.
  const drawing = new PacedDrawing(() => {
    if (source === null) {
      shown.update(known.meshes);
    }
  });
  el.append(shown.node);
  connection.begin(model.get("first"));
  const onOnly = () => {
    only = String(model.get("only"));
    shown.follow(only);
    shown.update(known.meshes);
  };
  model.on("change:only", onOnly);
  const timer = setInterval(() => shown.tick(), 1000);
  return () => {
    clearInterval(timer);
    drawing.end();
    shown.close();
    unwatch();
    model.off("change:only", onOnly);
    connection.end();
  };
}

export default { render };
