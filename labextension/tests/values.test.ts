import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { findByRole, findByText, getAllByRole, getByRole, waitFor } from '@testing-library/dom';

import { pointOf } from '../../monarch_jupyter/widgets/js/grid.js';
import widget from '../../monarch_jupyter/widgets/js/value_grid.js';
import { reduceValues, type ValuesView } from '../../monarch_jupyter/widgets/js/views.js';
import { parse, type Values } from '../../monarch_jupyter/widgets/js/protocol.js';
import { WidgetPage } from './page.js';

const SIZES = { hosts: 2, gpus: 2 };

function values(seq: number, texts: string[], sizes: Record<string, number> = SIZES): Values {
  const numbers = texts.map(text => (Number.isFinite(Number(text)) ? Number(text) : null));
  return { type: 'values', seq, sizes, ...whole(sizes), numbers, texts };
}

/** The coordinates of a mesh that is no slice. */
function whole(sizes: Record<string, number>): Pick<Values, 'dims' | 'indices' | 'fixed'> {
  const ranges = Object.entries(sizes).map(
    ([dim, size]) => [dim, Array.from({ length: size }, (_, at) => at)] as const
  );
  return { dims: Object.keys(sizes), indices: Object.fromEntries(ranges), fixed: {} };
}

function texts(seq: number, shown: string[]): Values {
  return { type: 'values', seq, sizes: SIZES, ...whole(SIZES), numbers: null, texts: shown };
}

function delta(seq: number, changed: Record<number, number>): object {
  const [ranks, numbers] = [Object.keys(changed).map(Number), Object.values(changed)];
  return { type: 'values_delta', seq, ranks, numbers, texts: numbers.map(String) };
}

function shown(first: unknown): WidgetPage {
  return new WidgetPage(widget, { name: 'losses', first });
}

function cell(name: string): HTMLElement {
  return getByRole(document.body, 'gridcell', { name });
}

function reading(): string | null {
  return getByRole(document.body, 'status').textContent;
}

test('a rank lies where its mesh has it', () => {
  assert.deepEqual(pointOf(5, { hosts: 2, racks: 1, gpus: 3 }), { hosts: 1, racks: 0, gpus: 2 });
  assert.deepEqual(pointOf(0, {}), {});
});

describe('the values that a view knows', () => {
  const taken = (view: ValuesView | null, message: object): { view: ValuesView | null; sync: boolean } => {
    const read = parse(message);
    assert.ok(read.type === 'values' || read.type === 'values_delta');
    return reduceValues(view, read);
  };

  test('are those of the last message, where none is missing', () => {
    const first = taken(null, values(3, ['1', '2', '3', '4'])).view;
    const { view } = taken(first, delta(4, { 1: 9 }));
    assert.ok(view !== null);
    assert.deepEqual(view.texts, ['1', '9', '3', '4']);
    assert.deepEqual(view.numbers, [1, 9, 3, 4]);
    assert.equal(taken(view, delta(4, { 1: 7 })).view, view);
  });

  test('are asked for anew at a gap, and before the first message, once', () => {
    const first = taken(null, values(3, ['1', '2', '3', '4'])).view;
    const gap = taken(first, delta(5, { 0: 9 }));
    assert.deepEqual([gap.sync, gap.view?.stale], [true, true]);
    assert.equal(taken(gap.view, delta(6, { 0: 8 })).sync, false);
    assert.equal(taken(null, delta(1, { 0: 9 })).sync, true);
  });
});

describe('a grid of values', () => {
  test('says each number in full, where it lies, and how they spread', () => {
    shown(values(-1, ['0.125', '0.123456789', 'nan', '3']));
    assert.ok(getByRole(document.body, 'grid', { name: 'losses: 4 ranks by hosts and gpus' }));
    const long = cell('hosts=0 gpus=1: 0.123456789');
    assert.equal(long.textContent, '0.1235');
    assert.ok(cell('hosts=1 gpus=0: nan').classList.contains('mx-odd'));
    const scale = getByRole(document.body, 'group', { name: 'Scale' });
    assert.ok(scale.textContent.includes('lowest at hosts=0 gpus=1, highest at hosts=1 gpus=1'));
    assert.ok(document.body.textContent.includes('4 values, 4 different, 1 not finite'));
  });

  test('changes what is another in place, and keeps the rank that was chosen in view', async () => {
    const page = shown(values(0, ['1', '2', '3', '4']));
    const kept = cell('hosts=1 gpus=0: 3');
    kept.click();
    page.hear(values(0, ['1', '2', '3', '4']));
    page.hear(delta(1, { 2: 7 }));
    assert.equal(await findByRole(document.body, 'gridcell', { name: 'hosts=1 gpus=0: 7' }), kept);
    assert.equal(reading(), 'hosts=1 gpus=0: 7');
    // The scale has moved, and so have the colours of the others.
    assert.equal(cell('hosts=1 gpus=1: 4').style.getPropertyValue('--mx-heat'), '32%');
    kept.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
    assert.equal(kept.getAttribute('aria-selected'), 'false');
  });

  test('is laid out anew for other dims and for what are no numbers', async () => {
    const page = shown(values(0, ['1', '2', '3', '4']));
    page.hear(values(1, ['5', '6'], { gpus: 2 }));
    const isDrawn = (): void => {
      assert.equal(getAllByRole(document.body, 'gridcell').length, 2);
    };
    await waitFor(isDrawn, { container: document.body });
    page.hear(texts(2, ["'a'", "'a'", "'a'", "'<b>'"]));
    const last = await findByRole(document.body, 'gridcell', { name: "hosts=1 gpus=1: '<b>'" });
    assert.equal(last.textContent, "'<b>'");
    assert.ok(document.body.textContent.includes('4 values, 2 different'));
    assert.equal(document.querySelector<HTMLElement>('.mx-scale')?.hidden, true);
  });

  test('calls values alike only if their contents were compared', async () => {
    const page = shown(texts(0, ["'a'", "'a'", "'a'", "'a'"]));
    assert.ok(document.body.textContent.includes('4 values, all alike'));
    const unread = 'Tensor [8] on cuda:0 (contents not compared)';
    page.hear(texts(1, [unread, unread, unread, unread]));
    await findByText(document.body, '4 values, contents not compared');
    assert.ok(!document.body.textContent.includes('alike'));
    page.hear(texts(2, [unread, unread, unread, "'a'"]));
    await findByText(document.body, '4 values, 2 different, contents not compared');
  });

  test('draws changes together that come while it draws', async () => {
    const page = shown(values(0, ['1', '2', '3', '4']));
    const changed = cell('hosts=1 gpus=0: 3');
    let changes = 0;
    const observer = new MutationObserver(records => (changes += records.length));
    observer.observe(changed, { attributeFilter: ['aria-label'] });
    for (let seq = 1; seq <= 50; seq += 1) {
      page.hear(delta(seq, { 2: 100 + seq }));
    }
    await findByRole(document.body, 'gridcell', { name: 'hosts=1 gpus=0: 150' });
    observer.disconnect();
    assert.ok(changes <= 2, `${changes} changes were drawn`);
  });

  test('asks for all values when it begins and says when it leaves', () => {
    const page = shown(values(-1, ['1', '2', '3', '4']));
    page.end();
    assert.deepEqual(page.said.map(({ type }) => type), ['sync', 'leave']);
  });
});

test('a view whose kernel is gone keeps its picture, says so, and lives again when it is heard from', () => {
  const page = shown(values(0, ['1', '2', '3', '4']));
  page.hear({ type: 'comm_live_update' }, 'comm_live_update');
  assert.ok(document.body.textContent.includes('Not live: the kernel that made this view is gone.'));
  assert.ok(cell('hosts=0 gpus=0: 1'));
  page.end();
  assert.deepEqual(page.said.map(({ type }) => type), ['sync']); // nobody is there to be told
  page.hear(values(0, ['5', '2', '3', '4']));
  assert.ok(!document.body.textContent.includes('Not live'));
});

test('a slice shows the coordinates of the mesh that it was cut from', () => {
  const places = { dims: ['hosts', 'gpus'], indices: { gpus: [2, 3] }, fixed: { hosts: 1 } };
  shown({ ...values(-1, ['5', '9'], { gpus: 2 }), ...places });
  assert.ok(cell('hosts=1 gpus=2: 5'));
  assert.ok(cell('hosts=1 gpus=3: 9'));
  const scale = getByRole(document.body, 'group', { name: 'Scale' }).textContent;
  assert.match(scale, /lowest at hosts=1 gpus=2, highest at hosts=1 gpus=3/);
});

test('rows and columns of a slice have its coordinates', () => {
  const places = { dims: ['hosts', 'gpus'], indices: { hosts: [4, 6], gpus: [2, 3] }, fixed: {} };
  shown({ ...values(-1, ['1', '2', '3', '4']), ...places });
  const names = (role: string): (string | null)[] =>
    getAllByRole(document.body, role).map(head => head.textContent);
  assert.deepEqual(names('rowheader'), ['hosts=4', 'hosts=6']);
  assert.deepEqual(names('columnheader').slice(1), ['gpus=2', 'gpus=3']);
});
