import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { PacedDrawing } from '../../monarch_jupyter/widgets/js/paced_drawing.js';

/** A page whose time stands still between its tasks. */
class Page {
  time = 0;
  drawn: string[] = [];
  state = '';
  tasks: { at: number; run: () => void }[] = [];

  /** Draws the state, which takes so long. */
  drawing(takes: number): PacedDrawing {
    const draw = (): void => {
      this.drawn.push(`${this.state} at ${this.time}`);
      this.time += takes;
    };
    const later = (run: () => void, ms: number): void => void this.tasks.push({ at: this.time + ms, run });
    return new PacedDrawing(draw, { now: () => this.time, painted: run => later(run, 0), later });
  }

  change(state: string, drawing: PacedDrawing): void {
    this.state = state;
    drawing.ask();
  }

  /** Run what is due until then. */
  run(until: number): void {
    for (let next = this.due(until); next !== undefined; next = this.due(until)) {
      this.tasks.splice(this.tasks.indexOf(next), 1);
      this.time = Math.max(this.time, next.at);
      next.run();
    }
    this.time = Math.max(this.time, until);
  }

  private due(until: number): { at: number; run: () => void } | undefined {
    return this.tasks.filter(task => task.at <= until).sort((a, b) => a.at - b.at)[0];
  }
}

describe('a paced drawing', () => {
  test('draws at once what comes after a pause', () => {
    const page = new Page();
    const drawing = page.drawing(10);
    page.change('a', drawing);
    page.run(100);
    page.change('b', drawing);
    assert.deepEqual(page.drawn, ['a at 0', 'b at 100']);
  });

  test('draws together what comes meanwhile, and leaves as much time as the last drawing took', () => {
    const page = new Page();
    const drawing = page.drawing(400);
    page.change('a', drawing);
    for (const state of ['b', 'c', 'd']) {
      page.change(state, drawing);
    }
    page.run(799);
    assert.deepEqual(page.drawn, ['a at 0']);
    page.run(800);
    assert.deepEqual(page.drawn, ['a at 0', 'd at 800']);
    page.run(10_000);
    assert.deepEqual(page.drawn, ['a at 0', 'd at 800']);
  });

  test('draws what comes after a drawing that has failed', () => {
    const page = new Page();
    const drawing = page.drawing(10);
    const { drawn } = page;
    page.drawn = Object.freeze([]) as unknown as string[];
    assert.throws(() => {
      page.change('a', drawing);
    }, TypeError);
    page.drawn = drawn;
    page.run(100);
    page.change('b', drawing);
    assert.deepEqual(page.drawn, ['b at 100']);
  });

  test('draws nothing once it has ended', () => {
    const page = new Page();
    const drawing = page.drawing(400);
    page.change('a', drawing);
    page.change('b', drawing);
    drawing.end();
    page.run(10_000);
    assert.deepEqual(page.drawn, ['a at 0']);
  });
});
