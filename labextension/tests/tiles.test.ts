import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { fitOf, fits, shortLabel, type Layout } from '../../monarch_jupyter/widgets/js/tiles.js';

const range = (from: number, to: number): number[] =>
  Array.from({ length: to - from }, (_, i) => from + i);

/** A mesh of `hosts` by `gpus`. */
function layout(hosts: number, gpus: number): Layout {
  return {
    columns: gpus,
    ranks: hosts * gpus,
    labels: range(0, hosts).map(at => `hosts=${at}`),
    heads: range(0, gpus).map(at => `gpus=${at}`)
  };
}

describe('the tiles of a grid', () => {
  for (const [hosts, gpus, room] of [
    [16, 16, 1100],
    [16, 16, 560],
    [32, 8, 280],
    [64, 64, 360],
    [64, 64, 1100]
  ] as const) {
    test(`of ${hosts} by ${gpus} ranks fit into ${room} pixels, every column in sight`, () => {
      const fit = fitOf(layout(hosts, gpus), room);
      assert.ok(fit.label + gpus * (fit.width + fit.gap) <= room, JSON.stringify(fit));
    });
  }

  test('are roomy while there is room, and lose words before they lose columns', () => {
    const looks = [1100, 560, 200].map(room => fitOf(layout(2, 8), room).look);
    assert.deepEqual(looks, ['roomy', 'compact', 'tiny']);
  });

  test('have heads in full, or by index, as many as can be told apart', () => {
    assert.ok(fitOf(layout(16, 16), 1100).fullColumns);
    for (const room of [300, 400, 700]) {
      const fit = fitOf(layout(16, 64), room);
      assert.ok(!fit.fullColumns);
      assert.ok(fit.everyColumn * (fit.width + fit.gap) >= 2 * 6);
    }
  });

  test('have a label for every row that is high enough, else for every few', () => {
    assert.equal(fitOf(layout(16, 16), 1100).everyRow, 1);
    const fit = fitOf(layout(64, 64), 400);
    assert.ok(fit.everyRow > 1 && fit.everyRow * (fit.height + fit.gap) >= 12);
  });

  test('of many short rows lie in blocks side by side, all of them on one screen', () => {
    for (const [hosts, gpus, room] of [
      [128, 8, 1160],
      [128, 8, 1560],
      [64, 8, 1160]
    ] as const) {
      const fit = fitOf({ ...layout(hosts, gpus), folds: true }, room);
      const blocks = Math.ceil(hosts / fit.rows);
      assert.ok(blocks > 1, JSON.stringify(fit));
      assert.ok(blocks * (fit.label + gpus * (fit.width + fit.gap)) <= room, JSON.stringify(fit));
      assert.ok(fit.rows * (fit.height + fit.gap) <= 500, JSON.stringify(fit));
    }
  });

  test('lie below each other where that fits, where a page is narrow, and where values are texts', () => {
    assert.equal(fitOf({ ...layout(16, 32), folds: true }, 1560).rows, 0);
    assert.equal(fitOf({ ...layout(128, 64), folds: true }, 700).rows, 0);
    assert.equal(fitOf(layout(128, 8), 1160).rows, 0);
  });

  test('are the smallest ones in blocks when there are more rows than one screen has', () => {
    const fit = fitOf({ ...layout(512, 8), folds: true }, 700);
    assert.ok(fit.rows > 0 && fit.width === 10, JSON.stringify(fit));
  });

  test('hold a text whole or not at all', () => {
    assert.ok(fits('busy', 60));
    assert.ok(!fits('gpus=10', 60));
    assert.equal(shortLabel('hosts=1 gpus=10'), '1 10');
    assert.equal(shortLabel('gpus=16..31'), '16..31');
  });
});
