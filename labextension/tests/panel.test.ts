import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';

import { getAllByRole, getByRole, queryAllByRole } from '@testing-library/dom';
import { JSDOM } from 'jsdom';

import type { LinkState } from '../src/link.js';
import { PanelView } from '../src/panel.js';
import type { Mesh } from '../src/wire.js';
import { mesh, row } from './meshes.js';

describe('the panel', () => {
  let view: PanelView;

  beforeEach(() => {
    const { document } = new JSDOM('<body></body>').window;
    view = new PanelView(document);
    document.body.append(view.node);
  });

  const show = (state: LinkState, ...meshes: Mesh[]): void => {
    view.update({ kind: 'kernel', notebook: 'a.ipynb', state, meshes });
  };
  const said = (): string => getByRole(view.node, 'status').textContent;
  const item = (name: string): HTMLElement => getByRole(view.node, 'listitem', { name });
  const listed = (): string[] =>
    queryAllByRole(view.node, 'heading', { level: 3 }).map(heading => heading.textContent);

  test('is a region with a name', () => {
    assert.ok(getByRole(view.node.ownerDocument.body, 'region', { name: 'Monarch meshes' }));
  });

  test('lists each mesh by name with its dims, state, ranks and actors', () => {
    show(
      'live',
      mesh('u1', { name: 'workers', actors: ['trainers', 'readers'] }),
      mesh('u2', {
        name: 'readers',
        state: 'starting',
        sizes: { hosts: 2, gpus: 1 },
        rows: [row(0, { state: 'starting' })]
      })
    );
    assert.equal(getAllByRole(getByRole(view.node, 'list', { name: 'Meshes' }), 'listitem').length, 2);
    const workers = item('workers').textContent;
    for (const part of ['ready', 'gpus=2', '2 ranks: 2 idle', 'trainers, readers on this host']) {
      assert.ok(workers.includes(part), `${part} is not in: ${workers}`);
    }
    const readers = item('readers').textContent;
    for (const part of ['starting', 'hosts=2 gpus=1', '1 rank: 1 starting', 'no actors']) {
      assert.ok(readers.includes(part), `${part} is not in: ${readers}`);
    }
    assert.equal(said(), '2 meshes');
  });

  test('counts ranks by state, the failed ones first', () => {
    const rows = [row(0), row(1, { state: 'busy' }), row(2, { state: 'failed' }), row(3)];
    show('live', mesh('u', { rows }));
    assert.match(item('u').textContent, /4 ranks: 1 failed, 1 busy, 2 idle/);
  });

  test('spells out why ranks failed, and how many more did', () => {
    const rows = [0, 1, 2, 3, 4, 5, 6].map(rank =>
      row(rank, { state: 'failed', failure: `exit code ${rank}` })
    );
    show('live', mesh('u', { name: 'workers', state: 'failed', rows }));
    const failures = getByRole(item('workers'), 'list', { name: 'Failures' });
    const lines = getAllByRole(failures, 'listitem').map(line => line.textContent);
    assert.deepEqual(lines.slice(0, 2), ['rank 0: exit code 0', 'rank 1: exit code 1']);
    assert.equal(lines.at(-1), 'and 2 more');
    assert.equal(lines.length, 6);
    assert.equal(said(), '1 mesh, failed: workers');
  });

  test('has no list of failures while no rank failed', () => {
    show('live', mesh('u', { rows: [row(0, { state: 'failed', failure: 'x' })] }));
    show('live', mesh('u'));
    assert.equal(queryAllByRole(item('u'), 'list', { name: 'Failures' }).length, 0);
  });

  test('changes a mesh in place, so that what is read or focused stays', () => {
    show('live', mesh('a'), mesh('b'));
    const [first, summary] = [item('a'), getByRole(view.node, 'status').firstChild];
    show('live', mesh('a', { rows: [row(0, { state: 'busy' })] }), mesh('b'));
    assert.equal(item('a'), first);
    assert.match(first.textContent, /1 rank: 1 busy/);
    assert.equal(getByRole(view.node, 'status').firstChild, summary);
  });

  test('drops the meshes that are gone and puts new ones in the order of the kernel', () => {
    show('live', mesh('a'), mesh('b'));
    show('live', mesh('c'), mesh('b'), mesh('d'));
    assert.deepEqual(listed(), ['c', 'b', 'd']);
  });

  test('shows the name of a mesh as text, whatever is in it', () => {
    show('live', mesh('u', { name: '<img src=x>' }));
    assert.deepEqual(listed(), ['<img src=x>']);
    assert.equal(view.node.querySelector('img'), null);
  });

  const empty: [string, () => void, RegExp][] = [
    ['there is no notebook', () => view.update({ kind: 'no-notebook' }), /Open a notebook/],
    [
      'the notebook has no kernel',
      () => view.update({ kind: 'no-kernel', notebook: 'a.ipynb' }),
      /no kernel.*Choose one/
    ],
    ['the kernel has not answered', () => show('asking'), /answers when the running cell has ended/],
    ['the extension is not loaded', () => show('unloaded'), /Run %load_ext monarch_jupyter/],
    ['the kernel has ended', () => show('dead'), /Start it again/],
    ['another connection has the comms', () => show('elsewhere'), /Close that one/],
    ['there are no meshes', () => show('live'), /Run %monarch spawn workers gpus=8/]
  ];
  for (const [claim, arrange, words] of empty) {
    test(`says what to do when ${claim}`, () => {
      show('live', mesh('a'));
      arrange();
      assert.match(said(), words);
      assert.equal(queryAllByRole(view.node, 'list').length, 0);
      assert.equal(queryAllByRole(view.node, 'listitem').length, 0);
    });
  }
});
