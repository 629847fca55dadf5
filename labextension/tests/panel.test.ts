import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';

import { findByRole, getAllByRole, getByRole, getByText, queryAllByRole } from '@testing-library/dom';

import type { LinkState } from '../src/kernel_comm.js';
import { PanelView, statusText } from '../src/panel.js';
import type { Mesh, Request, Session } from '../../monarch_jupyter/widgets/js/protocol.js';
import { mesh, row } from './meshes.js';
import { isLook, newPage, settled } from './page.js';

describe('the panel', () => {
  let view: PanelView;
  let asked: Request[];
  let answer: (result: unknown) => void;

  beforeEach(() => {
    const document = newPage();
    asked = [];
    view = new PanelView(document, {
      ask: what => {
        if (isLook(what)) {
          return new Promise(() => undefined);
        }
        asked.push(what);
        return new Promise(done => (answer = done));
      },
      refresh: () => undefined
    });
    document.body.append(view.node);
  });

  const show = (state: LinkState, ...meshes: Mesh[]): void => {
    view.update({ kind: 'kernel', notebook: 'a.ipynb', state, meshes });
  };
  const said = (): string => view.node.querySelector('.jp-Monarch-summary')?.textContent ?? '';
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

  test('lists where ranks are paused, each a click from its console', () => {
    const where = 'Trainer.step, Cell In[2], line 14';
    const rows = [row(0), ...[1, 2, 3, 4, 5, 6].map(rank => row(rank, { state: 'paused', where }))];
    show('live', mesh('u', { name: 'workers', rows, sizes: { gpus: 7 } }));
    assert.match(item('workers').textContent, /7 ranks: 6 paused, 1 idle/);
    const paused = getByRole(item('workers'), 'list', { name: 'Paused' });
    const lines = getAllByRole(paused, 'listitem').map(line => line.textContent);
    assert.equal(lines[0], `gpus=1: ${where} Console`);
    assert.equal(lines.at(-1), 'and 1 more');
    getByRole(paused, 'button', { name: 'Console of gpus=2' }).click();
    assert.deepEqual(asked, [{ do: 'console', mesh: 'u', ranks: [2] }]);
    assert.ok(getByRole(item('workers'), 'region', { name: 'workers gpus=2 details' }));
    show('live', mesh('u', { name: 'workers', rows: [row(0)] }));
    assert.equal(queryAllByRole(item('workers'), 'list', { name: 'Paused' }).length, 0);
  });

  test('spells out why ranks failed, and how many more did', () => {
    const rows = [0, 1, 2, 3, 4, 5, 6].map(rank =>
      row(rank, { state: 'failed', failure: `exit code ${rank}` })
    );
    show('live', mesh('u', { name: 'workers', state: 'failed', rows }));
    const failures = getByRole(item('workers'), 'list', { name: 'Failures' });
    const lines = getAllByRole(failures, 'listitem').map(line => line.textContent);
    assert.deepEqual(lines.slice(0, 2), ['gpus=0: exit code 0 Restart', 'gpus=1: exit code 1 Restart']);
    assert.equal(lines.at(-1), 'and 2 more');
    assert.equal(lines.length, 6);
    assert.equal(said(), '1 mesh, failed: workers');
  });

  test('starts a dead rank again, and says what was lost, while its line stays', async () => {
    const dead = row(1, { state: 'failed', failure: 'exit code 3' });
    show('live', mesh('u', { name: 'workers', state: 'failed', rows: [row(0), dead] }));
    getByRole(item('workers'), 'button', { name: 'Restart gpus=1' }).click();
    assert.deepEqual(asked, [{ do: 'restart', mesh: 'u', ranks: [1] }]);
    const meanwhile = getByRole<HTMLButtonElement>(item('workers'), 'button', { name: 'Restart gpus=1' });
    assert.deepEqual([meanwhile.disabled, meanwhile.textContent], [true, 'Restarting …']);
    assert.match(item('workers').textContent, /restarting gpus=1: its process starts/);
    show('live', mesh('u', { name: 'workers', rows: [row(0), row(1, { state: 'starting' })] }));
    assert.ok(getByRole(item('workers'), 'button', { name: 'Restart gpus=1' }));
    show('live', mesh('u', { name: 'workers', rows: [row(0), row(1)] }));
    answer('restarted workers[gpus=1]: 1 new process\nnames lost on gpus=1: x (bound by a cell)');
    await settled();
    assert.equal(queryAllByRole(item('workers'), 'list', { name: 'Failures' }).length, 0);
    assert.match(item('workers').textContent, /names lost on gpus=1: x/);
    show('live', mesh('u', { name: 'workers', state: 'failed', rows: [row(0), dead] }));
    assert.doesNotMatch(item('workers').textContent, /names lost/);
    assert.ok(getByRole(item('workers'), 'button', { name: 'Restart gpus=1' }));
  });

  test('names the actors that have failed on ranks which live on', () => {
    const failed = ['trainers has failed on gpus=0..1: Trainer.step died of ValueError: x'];
    show('live', mesh('u', { name: 'workers', failed }));
    const failures = getByRole(item('workers'), 'list', { name: 'Failures' });
    assert.deepEqual(
      getAllByRole(failures, 'listitem').map(line => line.textContent),
      failed
    );
  });

  test('has no list of failures while no rank failed', () => {
    show('live', mesh('u', { rows: [row(0, { state: 'failed', failure: 'x' })] }));
    show('live', mesh('u'));
    assert.equal(queryAllByRole(item('u'), 'list', { name: 'Failures' }).length, 0);
  });

  test('says on which ranks of a mesh the debugger of JupyterLab is', () => {
    show('live', mesh('u', { name: 'workers', debugged: [0, 1] }));
    assert.match(item('workers').textContent, /JupyterLab's debugger is on gpus=0 and 1 more/);
    show('live', mesh('u', { name: 'workers' }));
    assert.doesNotMatch(item('workers').textContent, /debugger/);
  });

  test('changes a mesh in place, so that what is read or focused stays', () => {
    show('live', mesh('a'), mesh('b'));
    const [first, summary] = [item('a'), view.node.querySelector('.jp-Monarch-summary')?.firstChild];
    show('live', mesh('a', { rows: [row(0, { state: 'busy' })] }), mesh('b'));
    assert.equal(item('a'), first);
    assert.match(first.textContent, /1 rank: 1 busy/);
    assert.equal(view.node.querySelector('.jp-Monarch-summary')?.firstChild, summary);
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

  test('spawns the mesh of its form, and says what came of it', async () => {
    show('live');
    const field = (name: string): HTMLInputElement => getByRole(view.node, 'textbox', { name });
    const spawn = getByRole(view.node, 'button', { name: 'Spawn' });
    field('Name').value = 'readers';
    field('Dims').value = 'hosts=2, gpus=4';
    spawn.click();
    const sizes = { hosts: 2, gpus: 4 };
    assert.deepEqual(asked, [{ do: 'spawn', name: 'readers', sizes, keep: false }]);
    answer('readers is bound in the notebook, 8 ranks');
    await settled();
    assert.ok(getByText(view.node, 'readers is bound in the notebook, 8 ranks'));
    field('Dims').value = 'gpus';
    spawn.click();
    assert.ok(getByText(view.node, /"gpus" is not a dim/));
    assert.equal(asked.length, 1);
  });

  test('asks for a value in an empty or invalid field of its form, and spawns nothing', () => {
    show('live');
    const field = (name: string): HTMLInputElement => getByRole(view.node, 'textbox', { name });
    const spawn = getByRole(view.node, 'button', { name: 'Spawn' });
    const refused = (name: string, text: RegExp): void => {
      spawn.click();
      assert.ok(getByText(view.node, text));
      assert.equal(field(name).getAttribute('aria-invalid'), 'true');
      assert.equal(document.activeElement, field(name));
    };
    refused('Name', /give the mesh a name: it becomes a variable of the notebook, such as workers/);
    field('Name').value = 'two words';
    refused('Name', /"two words" is not a name/);
    field('Name').value = 'readers';
    refused('Dims', /give the dims and their sizes: write gpus=8, or hosts=2 gpus=4/);
    assert.equal(field('Name').getAttribute('aria-invalid'), null);
    for (const [dims, text] of [
      ['8', /"8" is not a dim/],
      ['gpus=0', /"gpus=0" leaves the mesh without ranks/],
      ['gpus=2 gpus=4', /dim gpus is given twice/]
    ] as const) {
      field('Dims').value = dims;
      refused('Dims', text);
    }
    assert.deepEqual(asked, []);
  });

  test('shows the ranks of a mesh when they are wanted, with what can be done about them', () => {
    show('live', mesh('u', { name: 'workers' }));
    getByRole(item('workers'), 'button', { name: 'Ranks' }).click();
    getByRole(item('workers'), 'gridcell', { name: 'workers gpus=1: idle' }).click();
    show('live', mesh('u', { name: 'workers', rows: [row(0), row(1, { state: 'busy' })] }));
    assert.ok(getByRole(item('workers'), 'gridcell', { name: 'workers gpus=1: busy' }));
    getByRole(item('workers'), 'button', { name: 'Stop its call' }).click();
    assert.deepEqual(asked, [{ do: 'stop', mesh: 'u', ranks: [1] }]);
    getByRole(item('workers'), 'button', { name: 'Ranks' }).click();
    assert.equal(queryAllByRole(view.node, 'gridcell').length, 0);
  });

  test('draws changes of an opened mesh together that come while it draws', async () => {
    show('live', mesh('u', { name: 'workers' }));
    getByRole(item('workers'), 'button', { name: 'Ranks' }).click();
    const tile = getByRole(item('workers'), 'gridcell', { name: 'workers gpus=1: idle' });
    let changes = 0;
    const observer = new MutationObserver(records => (changes += records.length));
    observer.observe(tile, { attributeFilter: ['data-state'] });
    for (let change = 0; change < 50; change += 1) {
      show('live', mesh('u', { name: 'workers', rows: [row(0), row(1, { state: change % 2 ? 'idle' : 'busy' })] }));
    }
    show('live', mesh('u', { name: 'workers', rows: [row(0), row(1, { state: 'paused' })] }));
    await findByRole(item('workers'), 'gridcell', { name: /^workers gpus=1: paused/ });
    observer.disconnect();
    assert.ok(changes <= 2, `${changes} changes were drawn`);
  });

  test('offers to attach to kept sessions that nobody holds, and to no others', () => {
    const session = (fields: Partial<Session>): Session => ({
      session: 's', state: 'live', kept_as: null, age_s: 1, agent_pid: 1, client_pid: 2,
      program: 'python', meshes: [], left: null, notebook: null, ...fields
    });
    const kept = session({ kept_as: 'training', state: 'detached', client_pid: null, meshes: ['w'] });
    view.sessions.update([session({}), kept, session({ kept_as: 'held' })], true);
    const buttons = getAllByRole(view.node, 'button', { name: /^Attach/ });
    assert.deepEqual(buttons.map(one => one.getAttribute('aria-label')), ['Attach training']);
    buttons[0]?.click();
    assert.deepEqual(asked, [{ do: 'attach', name: 'training' }]);
    view.sessions.update([kept], false);
    assert.ok(getByRole<HTMLButtonElement>(view.node, 'button', { name: 'Attach training' }).disabled);
    view.sessions.fail(new Error('the server does not know Monarch'));
    assert.ok(getByText(view.node, 'the server does not know Monarch'));
  });

  test('names sessions by their notebook or program, never by number, and says what one is', () => {
    const session = (fields: Partial<Session>): Session => ({
      session: '7f3a', state: 'live', kept_as: null, age_s: 1, agent_pid: 1, client_pid: 2,
      program: null, meshes: [], left: null, notebook: null, ...fields
    });
    const all = [
      session({ kept_as: 'training', notebook: 'a.ipynb', meshes: ['w'] }),
      session({ notebook: 'work/a.ipynb', program: 'python -m ipykernel_launcher -f x.json' }),
      session({ program: '/usr/bin/python3 jobs/train.py --lr=0.1' }),
      session({ program: '/usr/bin/python3 -m ipykernel_launcher -f x.json' }),
      session({})
    ];
    view.sessions.update(all, true);
    const names = getAllByRole(view.sessions.node, 'listitem').map(one => one.getAttribute('aria-label'));
    assert.deepEqual(names, ['training', 'work/a.ipynb', 'train.py', 'a notebook of another server', 'a program']);
    const { textContent } = view.sessions.node;
    assert.match(textContent, /A session is the meshes of one program\./);
    assert.match(textContent, /w; used by a\.ipynb, pid 2; 1\.0 s old/);
    assert.match(textContent, /ends with its program, pid 2/);
    assert.ok(!textContent.includes('7f3a'));
  });

  test('has a few words for the status bar', () => {
    assert.equal(statusText({ kind: 'no-notebook' }), '');
    const kernel = { kind: 'kernel', notebook: 'a', state: 'live' } as const;
    assert.equal(statusText({ ...kernel, meshes: [] }), '');
    assert.equal(statusText({ ...kernel, meshes: [mesh('a')] }), 'Monarch: 2 ranks: 2 idle');
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
