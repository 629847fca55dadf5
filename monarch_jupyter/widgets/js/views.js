/**
 * The state of a page from the numbered messages of a kernel: meshes, values, bars, by the same rules. Pure.
 */

/** @typedef {import("./protocol.js").Bar} Bar */
/** @typedef {import("./protocol.js").Mesh} Mesh */
/** @typedef {import("./protocol.js").Streamed} Streamed */

/**
 * The known meshes of a kernel, by uid, in the order in which the kernel named them first. `seq` is that of
 * the last message taken, null before the first snapshot of the stream; `stale` is true while a number
 * is missing.
 * @typedef {object} View
 * @property {number | null} seq
 * @property {boolean} stale
 * @property {ReadonlyMap<string, Mesh>} meshes
 */

/** @type {View} */
export const EMPTY = { seq: null, stale: false, meshes: new Map() };

/**
 * The view after one more message, and whether the kernel has to be asked for a snapshot. A snapshot is always taken, a delta only in its turn.
 * A snapshot with a number below 0 is no part of the stream: it is shown until that begins.
 * @param {View} view
 * @param {Streamed} message
 * @returns {{readonly view: View, readonly sync: boolean}}
 */
export function reduce(view, message) {
  if (message.type !== "snapshot" && message.type !== "delta") {
    return { view, sync: false }; // Of another kind of view.
  }
  if (message.type === "snapshot") {
    const meshes = new Map(message.meshes.map((mesh) => [mesh.uid, mesh]));
    return { view: { seq: message.seq < 0 ? null : message.seq, stale: false, meshes }, sync: false };
  }
  const turn = orderOf(view, message.seq);
  if (turn !== "next") {
    return turn === "gap" ? { view: { ...view, stale: true }, sync: true } : { view, sync: false };
  }
  const meshes = new Map(view.meshes);
  for (const uid of message.gone) {
    meshes.delete(uid);
  }
  for (const mesh of message.meshes) {
    meshes.set(mesh.uid, merged(meshes.get(mesh.uid), mesh));
  }
  return { view: { seq: message.seq, stale: false, meshes }, sync: false };
}

/**
 * Whether a delta of that number is the next one, comes behind a gap, or is to be left: it is older than the snapshot
 * that is shown, or a new one was asked for and is on its way.
 * @param {{readonly seq: number | null, readonly stale: boolean}} view
 * @param {number} seq
 * @returns {"next" | "gap" | "left"}
 */
function orderOf(view, seq) {
  if (view.stale || (view.seq !== null && seq <= view.seq)) {
    return "left";
  }
  return view.seq === null || seq !== view.seq + 1 ? "gap" : "next";
}

/**
 * `changed` with the rows it does not name taken from `old`, in rank order.
 * @param {Mesh | undefined} old
 * @param {Mesh} changed
 * @returns {Mesh}
 */
function merged(old, changed) {
  const rows = new Map(old?.rows.map((row) => [row.rank, row]));
  for (const row of changed.rows) {
    rows.set(row.rank, row);
  }
  return { ...changed, rows: [...rows.values()].sort((a, b) => a.rank - b.rank) };
}

/**
 * The known values of a grid; null before the first message. `seq` and `stale` as in a View.
 * @typedef {{seq: number | null, stale: boolean, sizes: Readonly<Record<string, number>>, dims: readonly string[],
 *   indices: import("./protocol.js").Indices, fixed: Readonly<Record<string, number>>,
 *   numbers: readonly (number | null)[] | null, texts: readonly string[]}} ValuesView
 */

/**
 * The values after one more message, and whether the kernel has to be asked for all of them; by the rules of `reduce`.
 * @param {ValuesView | null} view
 * @param {Streamed} message
 * @returns {{readonly view: ValuesView | null, readonly sync: boolean}}
 */
export function reduceValues(view, message) {
  if (message.type !== "values" && message.type !== "values_delta") {
    return { view, sync: false }; // Of another kind of view.
  }
  if (message.type === "values") {
    const { sizes, dims, indices, fixed, numbers, texts } = message;
    return {
      view: { seq: message.seq < 0 ? null : message.seq, stale: false, sizes, dims, indices, fixed, numbers, texts },
      sync: false,
    };
  }
  if (view === null) {
    return { view, sync: true };
  }
  const turn = orderOf(view, message.seq);
  if (turn !== "next") {
    return turn === "gap" ? { view: { ...view, stale: true }, sync: true } : { view, sync: false };
  }
  const texts = [...view.texts];
  const numbers = view.numbers === null ? null : [...view.numbers];
  message.ranks.forEach((rank, i) => {
    texts[rank] = message.texts[i] ?? "";
    if (numbers !== null) {
      numbers[rank] = message.numbers?.[i] ?? null;
    }
  });
  return { view: { ...view, seq: message.seq, numbers, texts }, sync: false };
}

/**
 * The bars that a view knows, by key, in the order in which they came; `seq` and `stale` as in a View.
 * @typedef {{readonly seq: number | null, readonly stale: boolean, readonly bars: ReadonlyMap<string, Bar>}} BarsShown
 */

/**
 * The bars after one more message, and whether the kernel has to be asked for all of them; by the rules of `reduce`.
 * @param {BarsShown | null} view
 * @param {Streamed} message
 * @returns {{readonly view: BarsShown | null, readonly sync: boolean}}
 */
export function reduceBars(view, message) {
  if (message.type !== "bars" && message.type !== "bars_delta") {
    return { view, sync: false }; // Of another kind of view.
  }
  const told = message.bars.map((bar) => /** @type {const} */ ([bar.key, bar]));
  if (message.type === "bars") {
    return { view: { seq: message.seq < 0 ? null : message.seq, stale: false, bars: new Map(told) }, sync: false };
  }
  if (view === null) {
    return { view, sync: true };
  }
  const turn = orderOf(view, message.seq);
  if (turn !== "next") {
    return turn === "gap" ? { view: { ...view, stale: true }, sync: true } : { view, sync: false };
  }
  const left = [...view.bars].filter(([key]) => !message.gone.includes(key));
  return { view: { seq: message.seq, stale: false, bars: new Map([...left, ...told]) }, sync: false };
}
