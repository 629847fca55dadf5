import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, test } from 'node:test';

import { getAllByRole, getByRole, queryByRole } from '@testing-library/dom';

import widget from '../../monarch_jupyter/widgets/js/progress.js';
import type { Bar } from '../../monarch_jupyter/widgets/js/protocol.js';
import { WidgetPage } from './page.js';

function bar(key: string, done: number, fields: Partial<Bar> = {}): Bar {
  return { key, what: `Trainer.${key}`, done, total: 8, unit: 'ranks', late: '', for_s: 12, ...fields };
}

function bars(seq: number, ...shown: Bar[]): object {
  return { type: 'bars', seq, bars: shown };
}

describe('bars of slow work', () => {
  let page: WidgetPage;

  beforeEach(() => {
    page = new WidgetPage(widget, { first: bars(-1, bar('step', 2), bar('save', 0)) });
  });

  afterEach(() => {
    page.end(); // which ends its clock
  });

  const step = (): HTMLProgressElement => getByRole(document.body, 'progressbar', { name: 'Trainer.step' });

  test('are progress bars that say what, how much of how much, for how long and who is late', () => {
    page.hear(bars(0, bar('step', 6, { late: 'gpus=3,5' })));
    assert.deepEqual([step().value, step().max], [6, 8]);
    assert.equal(step().getAttribute('aria-valuetext'), '6 of 8 ranks; waiting for gpus=3,5');
    assert.ok(document.body.textContent.includes('Trainer.step6 of 8 ranks, 12 s; waiting for gpus=3,5'));
  });

  test('move by themselves until the first part is done', () => {
    const save = (): HTMLProgressElement => getByRole(document.body, 'progressbar', { name: 'Trainer.save' });
    assert.equal(save().hasAttribute('value'), false);
    assert.ok(document.body.textContent.includes('Trainer.save0 of 8 ranks, 12 s'));
    page.hear(bars(0, bar('step', 2), bar('save', 1)));
    assert.equal(save().value, 1);
    page.hear(bars(1, bar('step', 2), bar('save', 0)));
    assert.equal(save().hasAttribute('value'), false);
  });

  test('move by themselves, and say what is done, where nobody knows how much there is', () => {
    page.hear(bars(0, bar('step', 1200, { total: null, unit: 'items' })));
    assert.equal(step().hasAttribute('value'), false);
    assert.equal(step().getAttribute('aria-valuetext'), '1,200 items');
    assert.ok(document.body.textContent.includes('Trainer.step1,200 items, 12 s'));
  });

  test('change in place, come and go', () => {
    const kept = step();
    page.hear(bars(0, bar('step', 2), bar('save', 0)));
    page.hear({ type: 'bars_delta', seq: 1, bars: [bar('step', 3), bar('load', 1)], gone: ['save'] });
    assert.equal(step(), kept);
    assert.equal(kept.value, 3);
    assert.equal(getAllByRole(document.body, 'progressbar').length, 2);
    assert.equal(queryByRole(document.body, 'progressbar', { name: 'Trainer.save' }), null);
  });

  test('are asked for anew at a gap, once, and nothing is shown of what comes before them', () => {
    page.hear(bars(0, bar('step', 2)));
    page.hear({ type: 'bars_delta', seq: 2, bars: [bar('step', 4)], gone: [] });
    page.hear({ type: 'bars_delta', seq: 3, bars: [bar('step', 5)], gone: [] });
    assert.deepEqual(page.said.map(({ type }) => type), ['sync', 'sync']);
    assert.equal(step().value, 2);
    page.hear(bars(3, bar('step', 5)));
    assert.equal(step().value, 5);
  });
});
