/** Meshes to write tests with: what matters is given, the rest is plausible. */

import type { Delta, Mesh, Row, Snapshot } from '../../monarch_jupyter/widgets/js/protocol.js';

export function row(rank: number, fields: Partial<Row> = {}): Row {
  return {
    rank,
    point: { gpus: rank },
    pid: 1000 + rank,
    state: 'idle',
    actor: null,
    endpoint: null,
    since_s: 0,
    messages: 0,
    rss_mib: 20,
    failure: null,
    errors: 0,
    restarts: 0,
    where: null,
    ...fields
  };
}

export function mesh(uid: string, fields: Partial<Mesh> = {}): Mesh {
  return {
    uid,
    name: uid,
    host: 'this host',
    state: 'ready',
    sizes: { gpus: 2 },
    actors: [],
    failed: [],
    debugged: [],
    age_s: 1,
    rows: [row(0), row(1)],
    ...fields
  };
}

export function snapshot(seq: number, ...meshes: Mesh[]): Snapshot {
  return { type: 'snapshot', seq, meshes };
}

export function delta(seq: number, meshes: Mesh[], gone: string[] = []): Delta {
  return { type: 'delta', seq, meshes, gone };
}
