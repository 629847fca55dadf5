/**
 * A view whose kernel is gone asks the page for another source of its meshes: in JupyterLab the side panel, which
 * connects to the notebook's next kernel by itself. A kept mesh has the same uid there once it is attached.
 */

/** The event by which a view asks; it bubbles from the view's element to the notebook that it is in. */
export const LOST = "monarch-view-lost";

/**
 * Another way to the meshes of a notebook. `meshes`: null while its kernel doesn't answer. `watch` calls back after
 * each change, until the function that it returns is called.
 * @typedef {object} Source
 * @property {() => ReadonlyMap<string, import("./protocol.js").Mesh> | null} meshes
 * @property {import("./controls.js").Ask} ask
 * @property {(changed: () => void) => (() => void)} watch
 */
/** @typedef {{offer: (source: Source) => void}} LostDetail */

/**
 * The source that the page offers; null without the side panel.
 * @param {HTMLElement} el
 * @returns {Source | null}
 */
export function requestSource(el) {
  /** @type {Source[]} */
  const offered = [];
  /** @type {LostDetail} */
  const detail = { offer: (source) => offered.push(source) };
  el.dispatchEvent(new CustomEvent(LOST, { bubbles: true, detail }));
  return offered[0] ?? null;
}
