import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';

import { getByRole, queryByRole } from '@testing-library/dom';

import { parseTimeline, parseUsage, type Call } from '../../monarch_jupyter/widgets/js/activity_protocol.js';
import { MeshView } from '../../monarch_jupyter/widgets/js/mesh.js';
import { TimelineView } from '../../monarch_jupyter/widgets/js/timeline.js';
import type { Request } from '../../monarch_jupyter/widgets/js/protocol.js';
import {
  CallStore,
  liveStretch,
  labelEvery,
  panned,
  spanText,
  summaryOf,
  ticksOf,
  traceOf,
  zoomed
} from '../../monarch_jupyter/widgets/js/timeline_state.js';
import { figureText, pathOf } from '../../monarch_jupyter/widgets/js/usage.js';
import { mesh, row } from './meshes.js';
import { newPage, settled } from './page.js';

const call = (rank: number, began: number, took: number | null, fields: Partial<Call> = {}): Call => ({
  rank,
  name: 'Trainer.step',
  began,
  took,
  failed: false,
  ...fields
});

describe('a trace of calls', () => {
  const events = traceOf(
    mesh('ab', { name: 'workers' }),
    [call(0, 10, 0.5), call(1, 11.000001, null), call(1, 10, 0.25, { failed: true })],
    12
  ).traceEvents as Record<string, unknown>[];

  test('names the mesh and its ranks', () => {
    const names = events.filter(({ ph }) => ph === 'M').map(({ name, tid, args }) => [name, tid, args]);
    assert.deepEqual(names, [
      ['process_name', 0, { name: 'workers' }],
      ['thread_name', 1, { name: 'gpus=0' }],
      ['thread_name', 2, { name: 'gpus=1' }]
    ]);
  });

  test('has a bar for each call, in microseconds; one that runs ends now', () => {
    const bars = events.filter(({ ph }) => ph === 'X').map(({ tid, ts, dur, args }) => [tid, ts, dur, args]);
    assert.deepEqual(bars, [
      [1, 10_000_000, 500_000, { rank: 0, state: 'complete' }],
      [2, 11_000_001, 999_999, { rank: 1, state: 'running' }],
      [2, 10_000_000, 250_000, { rank: 1, state: 'failed' }]
    ]);
  });
});

describe('the calls of a timeline', () => {
  const answer = (now: number, ...calls: Call[]) => ({ now, calls, cut: 0, missing: 0 });

  test('are known once, however often an answer has them', () => {
    const store = new CallStore();
    store.add(answer(11, call(0, 10, 0.5)));
    store.add(answer(12, call(0, 10, 0.5), call(1, 11, 0.5)));
    assert.equal(store.calls.length, 2);
  });

  test('run until an answer has their end', () => {
    const store = new CallStore();
    store.add(answer(11, call(0, 10, null)));
    assert.deepEqual(store.calls.map(({ took }) => took), [null]);
    store.add(answer(12, call(0, 10, 1.5)));
    assert.deepEqual(store.calls.map(({ took }) => took), [1.5]);
  });

  test('are forgotten ten minutes after they ended', () => {
    const store = new CallStore();
    store.add(answer(11, call(0, 10, 0.5)));
    store.add(answer(700, call(0, 699, 0.5)));
    assert.deepEqual(store.calls.map(({ began }) => began), [699]);
  });

  test('are summed by endpoint for the stretch that is shown', () => {
    const calls = [
      call(0, 10, 1),
      call(1, 10, 3, { failed: true }),
      call(0, 11, 0.5, { name: 'Trainer.save' }),
      call(0, 90, 1)
    ];
    const found = summaryOf(calls, { from: 0, to: 20, isLive: false }, 20);
    assert.deepEqual(
      found.map(({ name, calls: number, failed, seconds }) => [name, number, failed, seconds]),
      [
        ['Trainer.step', 2, 1, 4],
        ['Trainer.save', 1, 0, 0.5]
      ]
    );
    assert.equal(found[0]?.longest.rank, 1);
  });
});

describe('a stretch of time', () => {
  test('that is live ends now when it is zoomed, and stays where it is when it is moved', () => {
    const live = liveStretch(100, 30);
    assert.deepEqual(zoomed(live, 2, 90), { from: 85, to: 100, isLive: true });
    assert.deepEqual(panned(live, -0.5), { from: 55, to: 85, isLive: false });
  });

  test('is zoomed around a moment, and neither to nothing nor beyond what is kept', () => {
    const still = { from: 0, to: 100, isLive: false };
    assert.deepEqual(zoomed(still, 2, 25), { from: 12.5, to: 62.5, isLive: false });
    assert.ok(zoomed(still, 1e12, 50).to > zoomed(still, 1e12, 50).from);
    const { from, to } = zoomed(still, 1e-9, 50);
    assert.equal(to - from, 600);
  });

  test('has round moments on its axis, as many as there is room for', () => {
    assert.deepEqual(ticksOf({ from: 0, to: 30, isLive: true }, 6), { step: 5, at: [0, 5, 10, 15, 20, 25, 30] });
    assert.equal(ticksOf({ from: 0, to: 0.03, isLive: true }, 6).step, 0.005);
    assert.equal(ticksOf({ from: 0, to: 600, isLive: true }, 6).step, 120);
  });

  test('labels lanes where rows of the last dim begin, or at equal parts of them', () => {
    assert.equal(labelEvery(1, 8), 1);
    assert.equal(labelEvery(3, 8), 4);
    assert.equal(labelEvery(12, 8), 16);
    assert.equal(labelEvery(12, 1024), 16);
    assert.equal(labelEvery(12, 1021), 12);
  });

  test('is told in a unit that suits it', () => {
    assert.deepEqual([0.000_02, 0.0123, 0.5, 1.25, 240].map(spanText), ['20 µs', '12.3 ms', '500 ms', '1.25 s', '240 s']);
  });
});

describe('figures over time', () => {
  test('are a line with gaps where nothing is known', () => {
    assert.equal(pathOf([0, 100, null, 50], 100), 'M0.0 20.0L33.3 0.0M100.0 10.0');
    assert.equal(pathOf([], 100), '');
  });

  test('are told with their unit', () => {
    assert.deepEqual(
      [figureText(87, '%'), figureText(512, 'MiB'), figureText(1536, 'MiB'), figureText(null, '%')],
      ['87 %', '512 MiB', '1.5 GiB', 'unknown']
    );
  });

  test('that are malformed are refused with their place', () => {
    assert.throws(() => parseUsage({ samples: [{ number: 1, age_s: 'x' }] }), /samples\[0\]\.age_s/);
    assert.throws(() => parseTimeline({ now: 1, names: [], calls: [3], cut: 0, missing: 0 }), /calls\[0\]/);
  });
});

describe('the activity of a mesh', () => {
  let asked: Request[];
  let document: Document;

  beforeEach(() => {
    document = newPage();
    asked = [];
  });

  const sample = { number: 1, age_s: 1, cpu: [10, 90], memory: [300, 2048], gpu: [null, null], gpu_memory: [null, null] };
  const answers: Readonly<Record<string, unknown>> = {
    usage: { has_gpus: false, samples: [sample] },
    timeline: { now: 100, names: ['Trainer.step'], calls: [[1, 0, 99, 0.25, true]], cut: 0, missing: 0 },
    restart: 'restarted workers: 2 new processes'
  };
  const shown = (fields = {}): MeshView => {
    const view = new MeshView(mesh('u', { name: 'workers', ...fields }), what => {
      asked.push(what);
      return what.do in answers ? Promise.resolve(answers[what.do]) : new Promise(() => undefined);
    });
    document.body.append(view.node);
    return view;
  };

  test('is not asked for while nothing shows it', () => {
    const view = shown();
    view.tick();
    assert.deepEqual(asked, []);
  });

  test('is on the tiles when a measure is chosen, with the lowest and the highest in words', async () => {
    shown();
    const choice = getByRole<HTMLSelectElement>(document.body, 'combobox', { name: 'workers: what tiles show' });
    choice.value = 'cpu';
    choice.dispatchEvent(new Event('change'));
    await settled();
    assert.deepEqual(asked, [{ do: 'usage', mesh: 'u', after: 0 }]);
    assert.match(document.body.textContent, /lowest 10 % at gpus=0, highest 90 % at gpus=1/);
    assert.equal(document.querySelectorAll('.mx-heated .mx-spark').length, 2);
    choice.value = 'state';
    choice.dispatchEvent(new Event('change'));
    assert.equal(document.querySelectorAll('.mx-heated').length, 0);
  });

  test('is in the details of a rank, without rows of devices that it does not use', async () => {
    shown();
    getByRole(document.body, 'gridcell', { name: 'workers gpus=1: idle' }).click();
    await settled();
    const use = getByRole(document.body, 'list', { name: 'Use of processor and memory' });
    const rows = [...use.querySelectorAll<HTMLElement>('[role=listitem]')].filter(one => !one.hidden);
    assert.deepEqual(rows.map(one => one.querySelector('.mx-usage-now')?.textContent), ['90 %', '2.0 GiB']);
  });

  test('is a timeline that says of which failed ranks no calls are known', async () => {
    shown({ rows: [row(0, { state: 'failed', failure: 'killed' }), row(1, { state: 'failed', failure: 'killed' })] });
    getByRole(document.body, 'button', { name: 'Timeline' }).click();
    await settled();
    const timeline = getByRole(document.body, 'region', { name: 'Timeline of calls' });
    assert.ok(timeline.textContent.includes('1 call known; those of 1 failed rank are lost with its process.'));
  });

  test('is a timeline with a table of endpoints, asked for while it is open only', async () => {
    const view = shown();
    const opener = getByRole(document.body, 'button', { name: 'Timeline' });
    opener.click();
    await settled();
    assert.deepEqual(asked, [{ do: 'timeline', mesh: 'u', after_s: 0 }]);
    const table = getByRole(document.body, 'table');
    assert.match(table.textContent, /Trainer\.step1, 1 failed250 ms250 ms at gpus=1/);
    view.tick();
    await settled();
    assert.deepEqual(asked[1], { do: 'timeline', mesh: 'u', after_s: 99 });
    opener.click();
    view.tick();
    assert.equal(asked.length, 2);
  });

  test('is the timeline of the time of a recording that was chosen while an answer was due', async () => {
    const due: ((answer: unknown) => void)[] = [];
    const ask = Object.assign(() => new Promise<unknown>(resolve => due.push(resolve)), { isRecorded: () => true });
    const view = new TimelineView(ask);
    view.update(mesh('u', { name: 'workers' }));
    view.toggle();
    view.tick(); // the state of another time has come
    assert.equal(due.length, 1);
    due[0]?.({ now: 100, names: ['Trainer.step'], calls: [[0, 0, 99, 0.5, false]], cut: 0, missing: 0 });
    await settled();
    assert.equal(due.length, 2);
    due[1]?.({ now: 99.25, names: ['Trainer.step'], calls: [[0, 0, 99, null, false]], cut: 0, missing: 0 });
    await settled();
    assert.match(view.node.textContent, /so far/);
    assert.equal(due.length, 2);
  });

  test('of a dead rank offers to start it again, once at a time, and of a living one does not', async () => {
    const due: { done: (result: unknown) => void; fail: (error: Error) => void }[] = [];
    const dead = [row(0, { state: 'failed' }), row(1, { state: 'failed', failure: 'killed' })];
    const view = new MeshView(mesh('u', { name: 'workers', sizes: { gpus: 3 }, rows: [...dead, row(2)] }), what => {
      asked.push(what);
      return new Promise((done, fail) => what.do === 'restart' && due.push({ done, fail }));
    });
    document.body.append(view.node);
    const choose = (rank: number): void => view.node.querySelector<HTMLElement>(`[data-rank="${rank}"]`)?.click();
    const name = /Restart(ing …| rank)/;
    choose(2);
    assert.equal(queryByRole(document.body, 'button', { name }), null);
    choose(1);
    getByRole(document.body, 'button', { name: 'Restart rank' }).click();
    const restarts = (): Request[] => asked.filter(what => what.do === 'restart');
    assert.deepEqual(restarts(), [{ do: 'restart', mesh: 'u', ranks: [1] }]);
    assert.ok(getByRole<HTMLButtonElement>(document.body, 'button', { name: 'Restarting …' }).disabled);
    choose(0);
    assert.equal(getByRole<HTMLButtonElement>(document.body, 'button', { name: 'Restart rank' }).disabled, false);
    choose(1);
    due[0]?.fail(new Error('workers[gpus=1] has not come back'));
    await settled();
    assert.match(document.body.textContent, /has not come back/);
    getByRole(document.body, 'button', { name: 'Restart rank' }).click();
    view.update(mesh('u', { name: 'workers', sizes: { gpus: 3 }, rows: [row(0), row(1), row(2)] }));
    due[1]?.done('restarted workers[gpus=1]: 1 new process');
    await settled();
    assert.match(document.body.textContent, /restarted workers\[gpus=1\]: 1 new process/);
    assert.equal(queryByRole(document.body, 'button', { name }), null);
  });

  test('of a mesh with a dead rank offers to start the mesh again, at the second press', () => {
    const view = shown();
    assert.equal(queryByRole(document.body, 'button', { name: 'Restart' }), null);
    view.update(mesh('u', { name: 'workers', rows: [row(0), row(1, { state: 'failed', failure: 'killed' })] }));
    getByRole(document.body, 'button', { name: 'Restart' }).click();
    assert.deepEqual(asked, []);
    getByRole(document.body, 'button', { name: 'End workers and start it again?' }).click();
    assert.deepEqual(asked, [{ do: 'restart', mesh: 'u' }]);
  });
});
