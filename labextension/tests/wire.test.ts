import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { WireError } from '../../monarch_jupyter/widgets/js/fields.js';
import { PendingRequests } from '../../monarch_jupyter/widgets/js/pending.js';
import { EMPTY, reduce, type View } from '../../monarch_jupyter/widgets/js/views.js';
import { parse, parseLines, parseSessions, type Delta, type Snapshot } from '../../monarch_jupyter/widgets/js/protocol.js';
import { delta, mesh, row, snapshot } from './meshes.js';

/** The view after all messages, and how many of them made it ask for a snapshot. */
function after(...messages: (Snapshot | Delta)[]): { view: View; syncs: number } {
  let view = EMPTY;
  let syncs = 0;
  for (const message of messages) {
    const step = reduce(view, message);
    view = step.view;
    syncs += step.sync ? 1 : 0;
  }
  return { view, syncs };
}

function states(view: View, uid: string): string[] {
  return view.meshes.get(uid)?.rows.map(({ state }) => state) ?? [];
}

describe('the view of a kernel', () => {
  test('is what the last snapshot says', () => {
    const { view, syncs } = after(snapshot(7, mesh('a'), mesh('b')), snapshot(9, mesh('b')));
    assert.deepEqual([...view.meshes.keys()], ['b']);
    assert.equal(view.seq, 9);
    assert.equal(syncs, 0);
  });

  test('takes the changed rows of a delta and keeps the others', () => {
    const changed = mesh('a', { state: 'failed', rows: [row(1, { state: 'failed' })] });
    const { view } = after(snapshot(1, mesh('a'), mesh('b')), delta(2, [changed]));
    assert.deepEqual(states(view, 'a'), ['idle', 'failed']);
    assert.equal(view.meshes.get('a')?.state, 'failed');
    assert.deepEqual([...view.meshes.keys()], ['a', 'b']);
  });

  test('keeps rows in rank order, whatever order a delta names them in', () => {
    const wide = mesh('a', { rows: [row(3), row(0)] });
    const { view } = after(snapshot(1, wide), delta(2, [mesh('a', { rows: [row(2), row(1)] })]));
    assert.deepEqual(view.meshes.get('a')?.rows.map(({ rank }) => rank), [0, 1, 2, 3]);
  });

  test('gains the meshes a delta names first and loses those it calls gone', () => {
    const { view } = after(snapshot(1, mesh('a')), delta(2, [mesh('b')], ['a']));
    assert.deepEqual([...view.meshes.keys()], ['b']);
  });

  test('forgets the rows of a mesh that is gone before one of the same uid comes', () => {
    const again = mesh('a', { rows: [row(0)] });
    const { view } = after(snapshot(1, mesh('a')), delta(2, [again], ['a']));
    assert.deepEqual(states(view, 'a'), ['idle']);
  });

  test('asks once for a snapshot when a number is missing and shows the old state until then', () => {
    const lost = mesh('a', { rows: [row(0, { state: 'busy' })] });
    const gap = after(snapshot(1, mesh('a')), delta(3, [lost]), delta(4, [lost]));
    assert.equal(gap.syncs, 1);
    assert.equal(gap.view.stale, true);
    assert.deepEqual(states(gap.view, 'a'), ['idle', 'idle']);

    const { view, sync } = reduce(gap.view, snapshot(5, lost));
    assert.equal(sync, false);
    assert.equal(view.stale, false);
    assert.deepEqual(states(view, 'a'), ['busy']);
  });

  test('asks for a snapshot when a delta comes before any', () => {
    assert.equal(after(delta(1, [mesh('a')])).syncs, 1);
  });

  test('drops a delta that the snapshot already holds', () => {
    const old = mesh('a', { rows: [row(0, { state: 'busy' })] });
    const { view, syncs } = after(snapshot(5, mesh('a')), delta(4, [old]), delta(5, [old]));
    assert.deepEqual(states(view, 'a'), ['idle', 'idle']);
    assert.equal(syncs, 0);
  });

  test('begins anew with a snapshot of a lower number', () => {
    const { view, syncs } = after(snapshot(9, mesh('a')), snapshot(1), delta(2, [mesh('b')]));
    assert.deepEqual([...view.meshes.keys()], ['b']);
    assert.equal(syncs, 0);
  });

  test('leaves the view it was made from untouched', () => {
    const { view } = after(snapshot(1, mesh('a')));
    reduce(view, delta(2, [mesh('b')], ['a']));
    assert.deepEqual([...view.meshes.keys()], ['a']);
  });
});

describe('a message from the kernel', () => {
  test('is taken as it is when each field has its type', () => {
    const messages = [snapshot(1, mesh('a', { actors: ['t'] })), delta(2, [mesh('b')], ['a'])];
    for (const message of messages) {
      assert.deepEqual(parse(JSON.parse(JSON.stringify(message))), message);
    }
  });

  test('may have fields that are not known here', () => {
    const newer = { ...snapshot(1), version: 2, meshes: [{ ...mesh('a'), owner: 'me' }] };
    assert.deepEqual(parse(newer), snapshot(1, mesh('a')));
  });

  const wrong: [string, unknown, RegExp][] = [
    ['is no object', 'hello', /^message: expected an object, got "hello"/],
    ['has no type', { seq: 1, meshes: [] }, /^type: expected "snapshot", .* or "more", got nothing/],
    ['has no number', { type: 'snapshot', meshes: [] }, /^seq: expected a number/],
    ['does not say what is gone', { type: 'delta', seq: 1, meshes: [] }, /^gone: expected a list/],
    [
      'has a mesh of an unknown state',
      { type: 'snapshot', seq: 1, meshes: [{ ...mesh('a'), state: 'odd' }] },
      /^meshes\[0\]\.state: expected one of starting, ready, failed, stopped, got "odd"/
    ],
    [
      'has a row without a rank',
      { type: 'snapshot', seq: 1, meshes: [{ ...mesh('a'), rows: [{ ...row(0), rank: null }] }] },
      /^meshes\[0\]\.rows\[0\]\.rank: expected a number, got null/
    ]
  ];
  for (const [claim, data, words] of wrong) {
    test(`is refused with the place when it ${claim}`, () => {
      assert.throws(() => parse(data), (error: unknown) => {
        assert.ok(error instanceof WireError);
        assert.match(error.message, words);
        return true;
      });
    });
  }
});

describe('what a page asks', () => {
  const lines = { do: 'sessions' } as const;

  test('is answered under its number, whatever comes first', async () => {
    const sent: unknown[] = [];
    const pending = new PendingRequests('v', message => sent.push(message));
    const [first, second] = [pending.ask(lines), pending.ask(lines)];
    assert.deepEqual(sent, [
      { type: 'ask', view: 'v', id: 1, what: lines },
      { type: 'ask', view: 'v', id: 2, what: lines }
    ]);
    pending.onAnswer({ type: 'answer', view: 'v', id: 2, error: null, result: 'two' });
    pending.onAnswer({ type: 'answer', view: 'v', id: 1, error: 'no mesh', result: null });
    assert.equal(await second, 'two');
    await assert.rejects(first, /^Error: no mesh$/);
  });

  test('is not answered by what another view has asked', async () => {
    const pending = new PendingRequests('v', () => undefined);
    const asked = pending.ask(lines);
    pending.onAnswer({ type: 'answer', view: 'w', id: 1, error: null, result: 'theirs' });
    pending.onAnswer({ type: 'answer', view: 'v', id: 1, error: null, result: 'mine' });
    assert.equal(await asked, 'mine');
  });

  test('fails with the reason when nobody is left to answer', async () => {
    const pending = new PendingRequests('v', () => undefined);
    const asked = pending.ask(lines);
    pending.end('the kernel has ended');
    await assert.rejects(asked, /the kernel has ended/);
  });

  test('has answers that are checked too', () => {
    const page = { page: 1, pages: 1, first: 1, last: 1, total: 1, given_up: 0, folds: [] };
    assert.deepEqual(parseLines(page), page);
    assert.throws(() => parseLines({ ...page, folds: [{}] }), /folds\[0\]\.points: expected a string/);
    assert.throws(() => parseSessions({ sessions: [{ session: 1 }] }), /sessions\[0\]\.session/);
    assert.deepEqual(
      parse({ type: 'answer', view: 'v', id: 1, error: null, result: 3 }),
      { type: 'answer', view: 'v', id: 1, error: null, result: 3 }
    );
  });
});
