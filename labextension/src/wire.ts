/**
 * What the kernel and the panel say to each other, and the pure state kept from it. No I/O.
 *
 * The Python side of the same wire is monarch_jupyter/wire.py. A snapshot replaces everything; a delta
 * carries the meshes that changed, each with only its changed rows, and is numbered one higher than
 * the message before it. Invariant: a view is shown as current only while no number is missing.
 */

/** Comm target, registered on both sides. */
export const TARGET = 'monarch.meshes';

export type RankState = 'starting' | 'idle' | 'busy' | 'failed' | 'stopped';
export type MeshState = 'starting' | 'ready' | 'failed' | 'stopped';

/** One proc of a mesh. Times in seconds, memory in MiB. */
export interface Row {
  readonly rank: number;
  readonly point: Readonly<Record<string, number>>;
  readonly pid: number | null;
  readonly state: RankState;
  readonly actor: string | null;
  readonly endpoint: string | null;
  readonly since_s: number;
  readonly messages: number;
  readonly rss_mib: number | null;
  /** One line, when the state is "failed". */
  readonly failure: string | null;
  /** How many of the messages failed. */
  readonly errors: number;
}

export interface Mesh {
  readonly uid: string;
  readonly name: string;
  readonly host: string;
  readonly state: MeshState;
  readonly sizes: Readonly<Record<string, number>>;
  readonly actors: readonly string[];
  readonly age_s: number;
  readonly rows: readonly Row[];
}

export interface Snapshot {
  readonly type: 'snapshot';
  readonly seq: number;
  readonly meshes: readonly Mesh[];
}

export interface Delta {
  readonly type: 'delta';
  readonly seq: number;
  readonly meshes: readonly Mesh[];
  /** The uids of meshes that are no more. */
  readonly gone: readonly string[];
}

export type FromKernel = Snapshot | Delta;

/** The only thing the panel says: send me a snapshot. */
export interface Sync {
  readonly type: 'sync';
}

/** What is known of a kernel's meshes. */
export interface View {
  /** Number of the last message taken; null before the first snapshot. */
  readonly seq: number | null;
  /** True while a number is missing: what is shown may be old until the next snapshot. */
  readonly stale: boolean;
  /** By uid, in the order in which the kernel named them first. */
  readonly meshes: ReadonlyMap<string, Mesh>;
}

export const EMPTY: View = { seq: null, stale: false, meshes: new Map() };

export interface Step {
  readonly view: View;
  /** True when the kernel has to be asked for a snapshot. */
  readonly sync: boolean;
}

/** The view after one more message. A snapshot is always taken; a delta only in its turn. */
export function reduce(view: View, message: FromKernel): Step {
  if (message.type === 'snapshot') {
    const meshes = new Map(message.meshes.map(mesh => [mesh.uid, mesh]));
    return { view: { seq: message.seq, stale: false, meshes }, sync: false };
  }
  if (view.stale) {
    // A snapshot was asked for and is on its way.
    return { view, sync: false };
  }
  if (view.seq !== null && message.seq <= view.seq) {
    // Older than the snapshot that is shown.
    return { view, sync: false };
  }
  if (view.seq === null || message.seq !== view.seq + 1) {
    return { view: { ...view, stale: true }, sync: true };
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

/** `changed` with the rows it does not name taken from `old`, in rank order. */
function merged(old: Mesh | undefined, changed: Mesh): Mesh {
  const rows = new Map(old?.rows.map(row => [row.rank, row]));
  for (const row of changed.rows) {
    rows.set(row.rank, row);
  }
  return { ...changed, rows: [...rows.values()].sort((a, b) => a.rank - b.rank) };
}

/** Raised for what is not of this wire, with the place in it. */
export class WireError extends Error {
  override readonly name = 'WireError';
}

/** The message in `data`, checked field by field. Fields not known here are left alone. */
export function parse(data: unknown): FromKernel {
  const message = object(data, 'message');
  const seq = number(message.seq, 'seq');
  const meshes = list(message.meshes, 'meshes').map((item, i) => mesh(item, `meshes[${i}]`));
  switch (message.type) {
    case 'snapshot':
      return { type: 'snapshot', seq, meshes };
    case 'delta': {
      const gone = list(message.gone, 'gone').map((uid, i) => text(uid, `gone[${i}]`));
      return { type: 'delta', seq, meshes, gone };
    }
    default:
      throw new WireError(`type: expected "snapshot" or "delta", got ${show(message.type)}`);
  }
}

const RANK_STATES: readonly RankState[] = ['starting', 'idle', 'busy', 'failed', 'stopped'];
const MESH_STATES: readonly MeshState[] = ['starting', 'ready', 'failed', 'stopped'];

function mesh(data: unknown, at: string): Mesh {
  const fields = object(data, at);
  return {
    uid: text(fields.uid, `${at}.uid`),
    name: text(fields.name, `${at}.name`),
    host: text(fields.host, `${at}.host`),
    state: oneOf(MESH_STATES, fields.state, `${at}.state`),
    sizes: numbers(fields.sizes, `${at}.sizes`),
    actors: list(fields.actors, `${at}.actors`).map((name, i) => text(name, `${at}.actors[${i}]`)),
    age_s: number(fields.age_s, `${at}.age_s`),
    rows: list(fields.rows, `${at}.rows`).map((item, i) => row(item, `${at}.rows[${i}]`))
  };
}

function row(data: unknown, at: string): Row {
  const fields = object(data, at);
  return {
    rank: number(fields.rank, `${at}.rank`),
    point: numbers(fields.point, `${at}.point`),
    pid: orNull(number, fields.pid, `${at}.pid`),
    state: oneOf(RANK_STATES, fields.state, `${at}.state`),
    actor: orNull(text, fields.actor, `${at}.actor`),
    endpoint: orNull(text, fields.endpoint, `${at}.endpoint`),
    since_s: number(fields.since_s, `${at}.since_s`),
    messages: number(fields.messages, `${at}.messages`),
    rss_mib: orNull(number, fields.rss_mib, `${at}.rss_mib`),
    failure: orNull(text, fields.failure, `${at}.failure`),
    errors: number(fields.errors, `${at}.errors`)
  };
}

function show(value: unknown): string {
  return value === undefined ? 'nothing' : JSON.stringify(value);
}

function object(value: unknown, at: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new WireError(`${at}: expected an object, got ${show(value)}`);
  }
  return value as Record<string, unknown>;
}

function list(value: unknown, at: string): unknown[] {
  if (!Array.isArray(value)) {
    throw new WireError(`${at}: expected a list, got ${show(value)}`);
  }
  return value;
}

function text(value: unknown, at: string): string {
  if (typeof value !== 'string') {
    throw new WireError(`${at}: expected a string, got ${show(value)}`);
  }
  return value;
}

function number(value: unknown, at: string): number {
  if (typeof value !== 'number') {
    throw new WireError(`${at}: expected a number, got ${show(value)}`);
  }
  return value;
}

function numbers(value: unknown, at: string): Record<string, number> {
  const entries = Object.entries(object(value, at));
  return Object.fromEntries(entries.map(([key, item]) => [key, number(item, `${at}.${key}`)]));
}

function oneOf<T extends string>(allowed: readonly T[], value: unknown, at: string): T {
  const found = allowed.find(name => name === value);
  if (found === undefined) {
    throw new WireError(`${at}: expected one of ${allowed.join(', ')}, got ${show(value)}`);
  }
  return found;
}

function orNull<T>(
  read: (value: unknown, at: string) => T,
  value: unknown,
  at: string
): T | null {
  return value === null ? null : read(value, at);
}
