import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';

import { getAllByRole, getByRole, queryByRole, queryByText } from '@testing-library/dom';

import { gridOf } from '../../monarch_jupyter/widgets/js/grid.js';
import { MeshView } from '../../monarch_jupyter/widgets/js/mesh.js';
import type { Mesh, Request } from '../../monarch_jupyter/widgets/js/protocol.js';
import { mesh, row } from './meshes.js';
import { isLook, newPage, settled } from './page.js';

describe('the layout of a mesh', () => {
  const labels = (sizes: Record<string, number>): string[] =>
    gridOf(sizes).rows.map(({ label }) => label);

  test('has the last dim across and all others down', () => {
    const { columns, rows } = gridOf({ hosts: 2, racks: 2, gpus: 3 });
    assert.deepEqual(columns, ['gpus=0', 'gpus=1', 'gpus=2']);
    assert.deepEqual(rows[3], { label: 'hosts=1 racks=1', ranks: [9, 10, 11] });
  });

  test('breaks a long dim into rows, longer ones where ranks are many', () => {
    assert.deepEqual(labels({ gpus: 16 }), ['']);
    assert.deepEqual(labels({ gpus: 33 }), ['gpus=0..15', 'gpus=16..31', 'gpus=32']);
    assert.equal(labels({ gpus: 1024 }).length, 32);
    assert.equal(labels({ gpus: 4096 }).length, 64);
  });

  test('puts rows side by side in the explorer, where they are short and very many', () => {
    const { columns, rows, beside } = gridOf({ hosts: 512, gpus: 8 }, {}, true);
    assert.equal(beside, 8);
    assert.deepEqual([rows.length, columns.length], [64, 64]);
    assert.deepEqual([columns[0], columns[63]], ['hosts=+0 gpus=0', 'hosts=+7 gpus=7']);
    assert.deepEqual([rows[0]?.label, rows[63]?.label], ['hosts=0..7', 'hosts=504..511']);
    assert.deepEqual(rows[19]?.ranks.slice(0, 2), [1216, 1217]);
    assert.deepEqual(rows.flatMap(({ ranks }) => ranks).length, 4096);
  });

  test('joins rows of one place of the outer dims only, and leaves few or long ones as they are', () => {
    const joined = (sizes: Record<string, number>): string[] =>
      gridOf(sizes, {}, true).rows.map(({ label }) => label);
    const racks = joined({ racks: 300, hosts: 3, gpus: 2 });
    assert.deepEqual([racks.length, racks[0], racks[1]], [300, 'racks=0 hosts=0..2', 'racks=1 hosts=0..2']);
    assert.deepEqual(joined({ hosts: 65, gpus: 16 }).slice(-2), ['hosts=60..63', 'hosts=64']);
    for (const sizes of [{ hosts: 64, gpus: 64 }, { hosts: 100, gpus: 50 }, { hosts: 128, gpus: 8 }]) {
      assert.deepEqual(joined(sizes), labels(sizes));
    }
  });

  test('is one cell for a mesh without dims', () => {
    assert.deepEqual(gridOf({}).rows, [{ label: '', ranks: [0] }]);
  });
});

describe('a mesh in the page', () => {
  let document: Document;
  let asked: Request[];
  let answer: (result: string) => void;
  let refuse: (why: string) => void;

  beforeEach(() => {
    document = newPage();
    asked = [];
  });

  const ask = (what: Request): Promise<unknown> => {
    if (isLook(what)) {
      return new Promise(() => undefined);
    }
    asked.push(what);
    return new Promise((resolve, reject) => {
      answer = resolve;
      refuse = why => reject(new Error(why));
    });
  };
  const shown = (fields: Partial<Mesh> = {}): MeshView => {
    const view = new MeshView(mesh('u', { name: 'workers', ...fields }), ask);
    document.body.append(view.node);
    return view;
  };
  const press = (name: string): void => getByRole(document.body, 'button', { name }).click();
  const cell = (name: string): HTMLElement => getByRole(document.body, 'gridcell', { name });

  test('names each rank with what it does', () => {
    const busy = row(1, { state: 'busy', actor: 'Trainer', endpoint: 'step' });
    const view = shown({ rows: [row(0), busy] });
    assert.ok(cell('workers gpus=1: busy in Trainer.step'));
    const kept = cell('workers gpus=0: idle');
    view.update(mesh('u', { name: 'workers', rows: [row(0, { state: 'failed', failure: 'killed' }), busy] }));
    assert.equal(cell('workers gpus=0: failed: killed'), kept);
    const mapping = row(1, { state: 'busy', actor: 'the map', endpoint: 'run' });
    view.update(mesh('u', { name: 'workers', rows: [row(0), mapping] }));
    assert.ok(cell('workers gpus=1: busy in the map'));
  });

  test('asks to end the call of the rank that was chosen, and says what came of it', async () => {
    shown({ rows: [row(0), row(1, { state: 'busy', actor: 'Trainer', endpoint: 'step' })] });
    cell('workers gpus=1: busy in Trainer.step').click();
    press('Stop its call');
    assert.deepEqual(asked, [{ do: 'stop', mesh: 'u', ranks: [1] }]);
    answer('asked gpus=1 to end Trainer.step');
    await settled();
    assert.ok(document.body.textContent.includes('asked gpus=1 to end Trainer.step'));
  });

  test('kills nothing at the first press, and forgets it when the button is left', () => {
    shown();
    cell('workers gpus=1: idle').click();
    press('Kill process');
    const sure = getByRole(document.body, 'button', { name: 'Kill pid 1001?' });
    assert.deepEqual(asked, []);
    sure.dispatchEvent(new Event('blur'));
    press('Kill process');
    press('Kill pid 1001?');
    assert.deepEqual(asked, [{ do: 'kill', mesh: 'u', ranks: [1] }]);
  });

  test('shows only the ranks of the state that was chosen, and names them', () => {
    const failed = row(1, { state: 'failed', failure: 'killed' });
    const view = shown({ rows: [row(0), failed] });
    const dimmed = (): string[] =>
      [...document.querySelectorAll('.mx-dimmed')].map(node => node.getAttribute('aria-label') ?? '');
    press('✕ 1 failed: gpus=1');
    assert.deepEqual(dimmed(), ['workers gpus=0: idle']);
    const found = getByRole(document.body, 'group', { name: 'workers: ranks of the chosen state' });
    assert.equal(found.textContent, 'gpus=1');
    press('gpus=1');
    assert.ok(getByRole(document.body, 'region', { name: 'workers gpus=1 details' }));
    view.update(mesh('u', { name: 'workers', rows: [row(0), row(1)] }));
    assert.equal(found.textContent, 'no rank');
    press('✕ 0 failed');
    assert.deepEqual(dimmed(), []);
  });

  test('lays many short rows in blocks side by side, each below heads of its own', () => {
    const rows = Array.from({ length: 1024 }, (_, rank) =>
      row(rank, { point: { hosts: rank >> 3, gpus: rank % 8 } })
    );
    shown({ sizes: { hosts: 128, gpus: 8 }, host: '128 hosts', rows });
    const grid = getByRole(document.body, 'grid');
    const blocks = grid.querySelectorAll('.mx-heads').length;
    assert.ok(grid.hasAttribute('data-folded') && blocks > 1);
    assert.equal(getAllByRole(grid, 'columnheader').filter(head => head.title.startsWith('gpus')).length, 8);
    cell('workers hosts=127 gpus=3: idle').dispatchEvent(new Event('pointerover', { bubbles: true }));
    const marked = [...grid.querySelectorAll('.mx-here')];
    assert.deepEqual(marked.map(head => head.getAttribute('aria-label')).sort(), ['gpus=3', 'hosts=127']);
    assert.equal(marked[0]?.closest('.mx-heads'), [...grid.querySelectorAll('.mx-heads')].at(-1));
    cell('workers hosts=127 gpus=3: idle').click();
    const details = getByRole(document.body, 'region', { name: 'workers hosts=127 gpus=3 details' });
    assert.ok(details.textContent.includes('pid 2019') && !details.textContent.includes('128 hosts'));
  });

  test('says how long ago a rank failed', () => {
    shown({ rows: [row(0), row(1, { state: 'failed', failure: 'killed', since_s: 3.6 })] });
    cell('workers gpus=1: failed: killed').dispatchEvent(new Event('pointerover', { bubbles: true }));
    const reading = document.querySelector('.mx-reading')?.textContent;
    assert.ok(reading?.startsWith('gpus=1: failed: killed, 3.6 s ago'), reading);
  });

  test('names the rank that is pointed at below the grid, and the heads of its place', () => {
    shown({
      sizes: { hosts: 2, gpus: 2 },
      rows: [0, 1, 2, 3].map(rank => row(rank, { point: { hosts: rank >> 1, gpus: rank % 2 } }))
    });
    cell('workers hosts=1 gpus=0: idle').dispatchEvent(new Event('pointerover', { bubbles: true }));
    const reading = document.querySelector('.mx-reading')?.textContent;
    assert.equal(reading, 'hosts=1 gpus=0: idle, pid 1002, 20 MiB');
    const marked = [...document.querySelectorAll('.mx-here')].map(node => node.getAttribute('aria-label'));
    assert.deepEqual(marked, ['gpus=0', 'hosts=1']);
  });

  test('says why the kernel refuses', async () => {
    shown();
    press('Stop');
    press('Stop 2 processes?');
    assert.deepEqual(asked, [{ do: 'stop', mesh: 'u' }]);
    refuse('this mesh has ended');
    await settled();
    const said = getAllByRole(document.body, 'status').map(({ textContent }) => textContent);
    assert.deepEqual(said, ['this mesh has ended']);
  });

  test('puts the debugger of JupyterLab on the rank that is chosen', () => {
    shown({ rows: [row(0), row(1)] });
    cell('workers gpus=1: idle').click();
    press('Debug in JupyterLab');
    assert.deepEqual(asked, [{ do: 'debug_in_lab', mesh: 'u', ranks: [1] }]);
  });

  test('shows on which rank the debugger of JupyterLab is, for as long as it is', () => {
    const ranks = [row(0), row(1)];
    const view = shown({ rows: ranks, debugged: [1] });
    const says = (): string | null =>
      queryByText(document.body, /^JupyterLab's debugger is on/)?.textContent ?? null;
    const pressed = (): string | null =>
      getByRole(document.body, 'button', { name: 'Debug in JupyterLab' }).getAttribute('aria-pressed');
    assert.equal(says(), "JupyterLab's debugger is on gpus=1");
    cell('workers gpus=0: idle').click();
    assert.equal(pressed(), 'false');
    cell('workers gpus=1: idle').click();
    assert.equal(pressed(), 'true');
    view.update(mesh('u', { name: 'workers', rows: ranks }));
    assert.equal(says(), null);
    assert.equal(pressed(), 'false');
  });

  test('offers nothing for a rank that has no process, nor for a mesh that has ended', () => {
    const view = shown({ rows: [row(0, { state: 'failed', pid: null, failure: 'killed' }), row(1)] });
    cell('workers gpus=0: failed: killed').click();
    for (const name of ['Stop its call', 'Kill process', 'Stack', 'Console', 'Debug in JupyterLab']) {
      assert.ok(getByRole<HTMLButtonElement>(document.body, 'button', { name }).disabled, name);
    }
    view.end();
    assert.ok(cell('workers gpus=1: stopped'));
    assert.ok(cell('workers gpus=0: failed: killed'));
    assert.equal(queryByRole(document.body, 'group', { name: 'workers: end it' })?.hidden ?? true, true);
  });
});
