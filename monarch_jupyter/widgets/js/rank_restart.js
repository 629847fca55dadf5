/** A button that starts a dead rank again in its place, as `%monarch restart workers[gpus=3]` does. */

import { offers } from "./controls.js";
import { button, pointText, setText } from "./dom.js";

/** @typedef {import("./protocol.js").Mesh} Mesh */
/** @typedef {import("./protocol.js").Row} Row */

const MEANWHILE = "Restarting …";

/** It is there only while its rank is dead, and disabled while a restart of that rank is under way. */
export class RestartRankButton {
  /**
   * @param {import("./controls.js").Ask} ask
   * @param {import("./controls.js").Outcome} outcome
   * @param {{label?: string, onEnd?: () => void}} [options] `onEnd`: a restart has ended, well or not
   */
  constructor(ask, outcome, { label = "Restart rank", onEnd = () => undefined } = {}) {
    this._ask = ask;
    this._outcome = outcome;
    this._label = label;
    this._onEnd = onEnd;
    this.node = button(label, () => this._restart());
    this.node.hidden = true;
    this.node.title = "start its process and its actors again, in its place; other ranks go on";
    this._isOffered = offers(ask, "restart");
    /** Ranks that are being restarted, which a user can leave and choose again meanwhile. */
    this._underWay = /** @type {Set<string>} */ (new Set());
    /** @type {Mesh | null} */
    this._mesh = null;
    /** @type {Row | null} */
    this._row = null;
  }

  /**
   * @param {Mesh} mesh
   * @param {Row} row
   * @param {boolean} [ended] whether the mesh has ended
   */
  show(mesh, row, ended = false) {
    this._mesh = mesh;
    this._row = row;
    const isUnderWay = this._underWay.has(keyOf(mesh, row));
    this.node.hidden = !this._isOffered || ended || (row.state !== "failed" && !isUnderWay);
    this.node.disabled = isUnderWay;
    setText(this.node, isUnderWay ? MEANWHILE : this._label);
  }

  _restart() {
    const [mesh, row] = [this._mesh, this._row];
    if (mesh === null || row === null) {
      return;
    }
    const key = keyOf(mesh, row);
    this._underWay.add(key);
    this.show(mesh, row);
    this._outcome.say(`restarting ${pointText(row.point) || mesh.name}: its process starts, its actors are made …`);
    this._ask({ do: "restart", mesh: mesh.uid, ranks: [row.rank] })
      .then((result) => this._outcome.say(String(result)))
      .catch((/** @type {unknown} */ error) => this._outcome.fail(error))
      .finally(() => {
        this._underWay.delete(key);
        if (this._mesh !== null && this._row !== null) {
          this.show(this._mesh, this._row);
        }
        this._onEnd();
      });
  }
}

/**
 * @param {Mesh} mesh
 * @param {Row} row
 */
function keyOf(mesh, row) {
  return `${mesh.uid}/${row.rank}`;
}
