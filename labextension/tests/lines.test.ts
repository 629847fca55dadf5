import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';

import { getByRole } from '@testing-library/dom';

import { coloured } from '../../monarch_jupyter/widgets/js/ansi.js';
import { LinesView } from '../../monarch_jupyter/widgets/js/line_list.js';
import type { Fold, Lines, Request } from '../../monarch_jupyter/widgets/js/protocol.js';
import { newPage, settled } from './page.js';

function fold(text: string, ...where: string[]): Fold {
  return { points: where.join(';'), stream: 'stdout', text, each: where.map(one => ({ where: one, at: 0 })) };
}

function page(at: number, pages: number, ...folds: Fold[]): Lines {
  return { page: at, pages, first: 1, last: 2, total: 2 * pages, given_up: 0, folds };
}

describe('lines in the page', () => {
  let document: Document;
  let asked: Request[];
  let answers: ((lines: Lines) => void)[];
  let view: LinesView;

  beforeEach(() => {
    document = newPage();
    asked = [];
    answers = [];
    view = new LinesView(what => {
      asked.push(what);
      return new Promise(resolve => answers.push(resolve));
    }, 'Lines');
    document.body.append(view.node);
    view.show({ mesh: 'workers', cell: null, ranks: null });
  });

  const answer = async (lines: Lines, at = answers.length - 1): Promise<void> => {
    answers[at]?.(lines);
    await settled();
  };
  const written = (): string[] =>
    [...document.querySelectorAll('.mx-line')].map(line => line.textContent.replace(/^\d\d:\d\d:\d\d/, ''));
  const button = (name: string): HTMLButtonElement => getByRole(document.body, 'button', { name });
  const asks = (at: number | null): object => ({ do: 'lines', mesh: 'workers', cell: null, ranks: null, grep: '', page: at });

  test('are one line where ranks wrote the same, and come apart at a click', async () => {
    await answer(page(1, 1, fold('step 1', 'gpus=0', 'gpus=1'), fold('done', 'gpus=1')));
    assert.deepEqual(written(), ['[gpus=0;gpus=1] ×2step 1', '[gpus=1]done']);
    const unfold = button('[gpus=0;gpus=1] ×2');
    assert.equal(unfold.getAttribute('aria-expanded'), 'false');
    unfold.click();
    assert.deepEqual(written().slice(1, 3), ['[gpus=0]step 1', '[gpus=1]step 1']);
    assert.equal(unfold.getAttribute('aria-expanded'), 'true');
    unfold.click();
    assert.equal(written().length, 2);
  });

  test('come apart all together, by rank', async () => {
    await answer(page(1, 1, fold('step 1', 'gpus=0', 'gpus=1')));
    button('By rank').click();
    assert.deepEqual(written(), ['[gpus=0]step 1', '[gpus=1]step 1']);
  });

  test('begin with the newest page, and older ones are asked for when they are wanted', async () => {
    assert.deepEqual(asked, [asks(null)]);
    await answer(page(3, 3, fold('c', 'gpus=0')));
    assert.ok(button('Newer').disabled);
    button('Older').click();
    assert.deepEqual(asked.at(-1), asks(2));
    await answer(page(2, 3, fold('b', 'gpus=0')));
    assert.deepEqual(written(), ['[gpus=0]b']);
    button('Newer').click();
    assert.deepEqual(asked.at(-1), asks(null));
    button('Oldest').click();
    assert.deepEqual(asked.at(-1), asks(1));
  });

  test('that come late do not take the place of those asked for since', async () => {
    await answer(page(3, 3, fold('c', 'gpus=0')));
    button('Older').click();
    button('Oldest').click();
    await answer(page(1, 3, fold('a', 'gpus=0')));
    await answer(page(2, 3, fold('b', 'gpus=0')), 1);
    assert.deepEqual(written(), ['[gpus=0]a']);
  });

  test('are followed only where the newest are looked at, some times a second', async t => {
    t.mock.timers.enable({ apis: ['setTimeout'] });
    await answer(page(3, 3));
    view.follow();
    view.follow();
    t.mock.timers.tick(1000);
    assert.equal(asked.length, 2);
    await answer(page(3, 3));
    button('Oldest').click();
    view.follow();
    t.mock.timers.tick(1000);
    assert.equal(asked.length, 3);
  });
});

describe('colours of a terminal', () => {
  const markup = (text: string): string => {
    const node = newPage().createElement('p');
    node.append(...coloured(text));
    return node.innerHTML;
  };

  test('are those of the theme, until they are taken back', () => {
    const html = markup('a \u001b[1;31mb\u001b[0m c');
    assert.match(html, /^a <span style="font-weight: bold; color: [^"]*red[^"]*">b<\/span> c$/);
  });

  test('leave the text as it is, markup too', () => {
    assert.equal(markup('<b>\u001b[38;5;196m&\u001b[39m</b>'), '&lt;b&gt;<span style="color: rgb(255, 0, 0);">&amp;</span>&lt;/b&gt;');
  });
});
