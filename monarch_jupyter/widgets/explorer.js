/**
 * The mesh explorer in a cell: a grid of ranks by state, live while a cell runs.
 *
 * Runs in: the page, through anywidget; a plain module without imports. Every view keeps its own copy of
 * the meshes, from a snapshot and the deltas after it, and asks for a new snapshot when it missed one.
 * Elements are kept and changed in place, so that ten updates a second neither move the focus nor cost
 * more than the ranks that changed. Ranks lie as monarch_jupyter/rendering/layout.py lays them.
 */

const ICONS = { starting: "◌", idle: "○", busy: "●", ready: "●", failed: "✕", stopped: "□" };
const ORDER = ["failed", "busy", "idle", "starting", "stopped"];
const WRAP = 16;

/** The meshes that a view knows. `seq` is null until the stream has begun. */
class MeshStore {
  constructor() {
    this.seq = null;
    this.meshes = new Map();
  }

  /** Take one message; returns "sync" if one before it is missing, else the uids it changed. */
  take(message) {
    if (message.type === "snapshot") {
      this.meshes = new Map(message.meshes.map((mesh) => [mesh.uid, this.whole(mesh)]));
      this.seq = message.seq < 0 ? null : message.seq;
      return "all";
    }
    if (message.type !== "delta" || this.seq === null || message.seq <= this.seq) {
      return "none";
    }
    if (message.seq !== this.seq + 1) {
      this.seq = null;
      return "sync";
    }
    this.seq = message.seq;
    for (const uid of message.gone) {
      this.meshes.delete(uid);
    }
    for (const mesh of message.meshes) {
      this.meshes.set(mesh.uid, this.whole(mesh, this.meshes.get(mesh.uid)));
    }
    return "all";
  }

  /** A mesh with its rows by rank: those of `old` where the message doesn't name them. */
  whole(mesh, old) {
    const rows = new Map(old ? old.rows : []);
    const now = Date.now();
    for (const row of mesh.rows) {
      rows.set(row.rank, { ...row, began: now - row.since_s * 1000 });
    }
    return { ...mesh, rows };
  }
}

/** "gpus=3", or "" for the one rank of a mesh without dims. */
function pointText(point) {
  return Object.entries(point)
    .map(([dim, at]) => `${dim}=${at}`)
    .join(" ");
}

function extentText(sizes) {
  return `{${Object.entries(sizes)
    .map(([dim, size]) => `${dim}: ${size}`)
    .join(", ")}}`;
}

/** "busy in Trainer.step" */
function doing(row) {
  if (row.state === "failed" && row.failure) {
    return `failed: ${row.failure}`;
  }
  if (row.state === "busy" && row.endpoint) {
    return `busy in ${row.actor ? `${row.actor}.` : ""}${row.endpoint}`;
  }
  return row.state;
}

function duration(seconds) {
  if (seconds < 10) {
    return `${Math.max(0, seconds).toFixed(1)} s`;
  }
  const whole = Math.round(seconds);
  if (whole < 60) {
    return `${whole} s`;
  }
  return whole < 3600
    ? `${Math.floor(whole / 60)} min ${whole % 60} s`
    : `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Rows of ranks, with a label where rows have to be told apart, and the heads of the columns. */
function gridOf(sizes) {
  const dims = Object.keys(sizes);
  if (dims.length === 0) {
    return { columns: [], rows: [{ label: "", ranks: [0] }] };
  }
  const across = dims[dims.length - 1];
  const width = sizes[across];
  const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);
  if (dims.length === 1) {
    if (width <= WRAP) {
      return { columns: [], rows: [{ label: "", ranks: range(0, width) }] };
    }
    const rows = [];
    for (let from = 0; from < width; from += WRAP) {
      const to = Math.min(from + WRAP, width);
      rows.push({ label: `${across}=${from}..${to - 1}`, ranks: range(from, to) });
    }
    return { columns: [], rows };
  }
  const down = dims.slice(0, -1);
  const count = down.reduce((product, dim) => product * sizes[dim], 1);
  const rows = range(0, count).map((number) => {
    let rest = number;
    const place = {};
    for (const dim of [...down].reverse()) {
      place[dim] = rest % sizes[dim];
      rest = Math.floor(rest / sizes[dim]);
    }
    const label = down.map((dim) => `${dim}=${place[dim]}`).join(" ");
    return { label, ranks: range(number * width, (number + 1) * width) };
  });
  return { columns: range(0, width).map((at) => `${across}=${at}`), rows };
}

function element(tag, className, attributes = {}) {
  const node = document.createElement(tag);
  node.className = className;
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

function setLabel(node, text) {
  if (node.getAttribute("aria-label") !== text) {
    node.setAttribute("aria-label", text);
  }
}

/** One mesh: its headline, its grid, and the details of the rank that was chosen. */
class MeshView {
  constructor(mesh) {
    this.node = element("section", "mx-mesh");
    this.name = element("strong", "mx-name");
    this.extent = element("code", "mx-extent");
    this.state = element("span", "mx-state");
    this.place = element("span", "mx-place");
    this.tally = element("p", "mx-tally");
    const head = element("header", "mx-head");
    head.append(this.name, this.extent, this.state, this.place);
    this.details = element("section", "mx-details", { "aria-live": "off" });
    this.details.hidden = true;
    this.chosen = null;
    this.cells = new Map();
    this.grid = this.makeGrid(mesh);
    this.node.append(head, this.tally, this.grid, this.details);
    this.update(mesh);
  }

  makeGrid(mesh) {
    const size = Object.values(mesh.sizes).reduce((product, n) => product * n, 1);
    const dims = Object.keys(mesh.sizes);
    const by = dims.length ? ` by ${dims.join(" and ")}` : "";
    const density = size <= 64 ? "roomy" : size <= 256 ? "compact" : "dense";
    const grid = element("div", `mx-grid mx-${density}`, {
      role: "grid",
      "aria-label": `${mesh.name}: ${size} ${size === 1 ? "rank" : "ranks"}${by}`,
      // Arrow keys move in the grid, not from cell to cell of the notebook.
      "data-lm-suppress-shortcuts": "true",
    });
    const layout = gridOf(mesh.sizes);
    if (layout.columns.length) {
      const row = element("div", "mx-row", { role: "row" });
      row.append(element("span", "mx-label", { role: "columnheader" }));
      for (const column of layout.columns) {
        const head = element("span", "mx-column", { role: "columnheader" });
        head.textContent = column;
        row.append(head);
      }
      grid.append(row);
    }
    this.places = layout.rows.map(({ ranks }) => ranks);
    for (const { label, ranks } of layout.rows) {
      const row = element("div", "mx-row", { role: "row" });
      if (label) {
        const head = element("span", "mx-label", { role: "rowheader" });
        head.textContent = label;
        row.append(head);
      }
      for (const rank of ranks) {
        const cell = this.makeCell(rank, layout.columns.length > 0);
        this.cells.set(rank, cell);
        row.append(cell.node);
      }
      grid.append(row);
    }
    this.cells.get(0).node.tabIndex = 0;
    grid.addEventListener("keydown", (event) => this.onKey(event));
    grid.addEventListener("click", (event) => {
      const node = event.target.closest("[role=gridcell]");
      if (node) {
        this.focus(Number(node.dataset.rank));
        this.choose(Number(node.dataset.rank));
      }
    });
    return grid;
  }

  makeCell(rank, hasColumnHeads) {
    const node = element("div", "mx-cell", { role: "gridcell", tabindex: "-1" });
    node.dataset.rank = String(rank);
    node.setAttribute("aria-selected", "false");
    const icon = element("span", "mx-icon", { "aria-hidden": "true" });
    const where = element("span", "mx-where");
    const what = element("span", "mx-what");
    const top = element("span", "mx-top");
    top.append(icon, where);
    node.append(top, what);
    return { node, icon, where, what, row: null, hasColumnHeads };
  }

  update(mesh) {
    this.mesh = mesh;
    this.node.setAttribute("aria-label", mesh.name);
    setText(this.name, mesh.name);
    setText(this.extent, extentText(mesh.sizes));
    setText(this.state, `${ICONS[mesh.state]} ${mesh.state}`);
    this.state.dataset.state = mesh.state;
    const actors = mesh.actors.length ? `, actors: ${mesh.actors.join(", ")}` : "";
    setText(this.place, `on ${mesh.host}${actors}`);
    const counts = new Map();
    for (const row of mesh.rows.values()) {
      counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
    }
    const said = ORDER.filter((state) => counts.has(state));
    const tally = said.map((state) => [state, `${ICONS[state]} ${counts.get(state)} ${state}`]);
    if (tally.map(([, text]) => text).join("") !== this.tally.textContent) {
      const parts = tally.map(([state, text]) => {
        const part = element("span", "mx-count");
        part.dataset.state = state;
        part.textContent = text;
        return part;
      });
      this.tally.replaceChildren(...parts);
    }
    for (const [rank, cell] of this.cells) {
      const row = mesh.rows.get(rank);
      if (row && row !== cell.row) {
        this.updateCell(cell, row);
      }
    }
    this.updateDetails();
  }

  updateCell(cell, row) {
    cell.row = row;
    const point = pointText(row.point);
    cell.node.dataset.state = row.state;
    setText(cell.icon, ICONS[row.state]);
    // Under a column head the rank's place is said already.
    setText(cell.where, cell.hasColumnHeads ? row.state : point || "rank 0");
    const busy = row.state === "busy" && row.endpoint;
    const where = row.actor ? `${row.actor}.${row.endpoint}` : row.endpoint;
    setText(cell.what, busy ? where : cell.hasColumnHeads ? "" : row.state);
    cell.what.hidden = cell.what.textContent === "";
    const label = `${this.mesh.name} ${point}`.trim();
    setLabel(cell.node, `${label}: ${doing(row)}`);
    cell.node.title = doing(row);
  }

  /** The mesh is no more; its last picture stays, and says so. */
  end() {
    const rows = new Map();
    for (const [rank, row] of this.mesh.rows) {
      rows.set(rank, { ...row, state: "stopped", endpoint: null });
    }
    this.update({ ...this.mesh, state: "stopped", rows });
  }

  choose(rank) {
    const before = this.chosen === null ? null : this.cells.get(this.chosen);
    before?.node.setAttribute("aria-selected", "false");
    this.chosen = rank === this.chosen ? null : rank;
    if (this.chosen !== null) {
      this.cells.get(this.chosen).node.setAttribute("aria-selected", "true");
    }
    this.updateDetails();
  }

  /** Also called once a second, for the times. */
  updateDetails() {
    const row = this.chosen === null ? null : this.mesh.rows.get(this.chosen);
    this.details.hidden = !row;
    if (!row) {
      return;
    }
    const title = `${this.mesh.name} ${pointText(row.point)}`.trim();
    const facts = [
      ["state", doing(row)],
      ["for", duration((Date.now() - row.began) / 1000)],
      ["process", row.pid === null ? "none" : `pid ${row.pid} on ${this.mesh.host}`],
      ["messages", String(row.messages)],
      ["errors", String(row.errors)],
      ["memory", row.rss_mib === null ? "unknown" : `${row.rss_mib.toFixed(0)} MiB`],
    ];
    setLabel(this.details, `${title} details`);
    if (this.details.childElementCount === 0) {
      const list = element("dl", "mx-facts");
      for (const [name] of facts) {
        const term = element("dt", "");
        term.textContent = name;
        list.append(term, element("dd", ""));
      }
      this.details.append(element("strong", ""), list);
    }
    setText(this.details.querySelector("strong"), title);
    const values = this.details.querySelectorAll("dd");
    facts.forEach(([, value], i) => setText(values[i], value));
  }

  focus(rank) {
    for (const cell of this.cells.values()) {
      cell.node.tabIndex = -1;
    }
    const node = this.cells.get(rank).node;
    node.tabIndex = 0;
    node.focus();
  }

  onKey(event) {
    const node = event.target.closest("[role=gridcell]");
    if (!node || event.altKey || event.metaKey) {
      return;
    }
    const rank = Number(node.dataset.rank);
    const y = this.places.findIndex((ranks) => ranks.includes(rank));
    const x = this.places[y].indexOf(rank);
    const at = (line, place) => {
      const ranks = this.places[Math.max(0, Math.min(line, this.places.length - 1))];
      return ranks[Math.max(0, Math.min(place, ranks.length - 1))];
    };
    const last = this.places.length - 1;
    const goes = {
      ArrowLeft: () => at(y, x - 1),
      ArrowRight: () => at(y, x + 1),
      ArrowUp: () => at(y - 1, x),
      ArrowDown: () => at(y + 1, x),
      Home: () => at(event.ctrlKey ? 0 : y, 0),
      End: () => at(event.ctrlKey ? last : y, Infinity),
    }[event.key];
    if (goes) {
      this.focus(goes());
    } else if (event.key === "Enter" || event.key === " ") {
      this.choose(rank);
    } else if (event.key === "Escape" && this.chosen !== null) {
      this.choose(this.chosen);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

/** All meshes of a view, or the one it is about. */
class ExplorerView {
  constructor(only) {
    this.only = only;
    this.node = element("section", "mx-explorer", { "aria-label": "Mesh explorer" });
    this.empty = element("p", "mx-empty", { role: "status" });
    this.node.append(this.empty);
    this.views = new Map();
  }

  update(meshes) {
    const shown = [...meshes.values()].filter((mesh) => !this.only || mesh.uid === this.only);
    for (const mesh of shown) {
      const view = this.views.get(mesh.uid);
      if (view) {
        view.update(mesh);
      } else {
        const made = new MeshView(mesh);
        this.views.set(mesh.uid, made);
        this.node.append(made.node);
      }
    }
    for (const [uid, view] of this.views) {
      if (shown.some((mesh) => mesh.uid === uid)) {
        continue;
      }
      if (this.only) {
        view.end();
      } else {
        view.node.remove();
        this.views.delete(uid);
      }
    }
    const nothing = this.only ? "This mesh has stopped." : "No meshes. Make one with %monarch spawn workers gpus=8";
    setText(this.empty, this.views.size === 0 ? nothing : "");
    this.empty.hidden = this.views.size > 0;
  }

  tick() {
    for (const view of this.views.values()) {
      view.updateDetails();
    }
  }
}

function render({ model, el }) {
  const id = Math.random().toString(36).slice(2);
  const store = new MeshStore();
  const view = new ExplorerView(model.get("only"));
  el.append(view.node);
  const take = (message) => {
    const changed = store.take(message);
    if (changed === "sync") {
      model.send({ type: "sync", view: id });
    } else if (changed === "all") {
      view.update(store.meshes);
    }
  };
  const first = model.get("first");
  if (first) {
    take(first);
  }
  model.on("msg:custom", take);
  model.send({ type: "sync", view: id });
  const timer = setInterval(() => view.tick(), 1000);
  return () => {
    clearInterval(timer);
    model.off("msg:custom", take);
    model.send({ type: "leave", view: id });
  };
}

export default { render };
