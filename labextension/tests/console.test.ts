import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';

import { fireEvent, getAllByRole, getByRole, queryByRole } from '@testing-library/dom';

import { BreakpointsView, type Group } from '../../monarch_jupyter/widgets/js/breakpoints.js';
import { completed, ConsoleView, History, type Standing } from '../../monarch_jupyter/widgets/js/console.js';
import { DebugPane } from '../../monarch_jupyter/widgets/js/console_host.js';
import type { Request } from '../../monarch_jupyter/widgets/js/protocol.js';
import { newPage, settled } from './page.js';

describe('completion', () => {
  test('takes the last word as far as all matches agree', () => {
    assert.equal(completed('p self.lo', ['self.loss', 'self.losses']), 'p self.loss');
    assert.equal(completed('pri', ['print']), 'print');
  });

  test('leaves a line alone to which nothing is known', () => {
    assert.equal(completed('p xyz', []), 'p xyz');
    assert.equal(completed('p x', ['xa', 'xb']), 'p x');
  });
});

describe('history', () => {
  test('goes up to the first line and back down to what was not said yet', () => {
    const history = new History();
    history.add('p a');
    history.add('p b');
    history.add('p b');
    assert.equal(history.go(-1, 'draft'), 'p b');
    assert.equal(history.go(-1, 'p b'), 'p a');
    assert.equal(history.go(-1, 'p a'), null);
    assert.equal(history.go(1, 'p a'), 'p b');
    assert.equal(history.go(1, 'p b'), 'draft');
    assert.equal(history.go(1, 'draft'), null);
  });
});

const PAUSED: Standing = {
  title: 'workers[gpus=2] in Trainer.step, Cell In[2], line 14',
  prompt: '(Pdb) ',
  busy: false,
  over: false,
  entries: [],
  source: { first: 13, line: 14, lines: ['x = 1', 'breakpoint()', 'y = 2'] }
};

describe('a console', () => {
  let said: string[];
  let view: ConsoleView;
  let matches: (found: string[]) => void;

  beforeEach(() => {
    const document = newPage();
    said = [];
    view = new ConsoleView({
      say: text => said.push(text),
      complete: () => new Promise(done => (matches = done))
    });
    document.body.append(view.node);
    view.update(PAUSED);
  });

  const input = (): HTMLInputElement => getByRole(view.node, 'textbox');
  const press = (key: string, more = {}): boolean => fireEvent.keyDown(input(), { key, ...more });

  test('marks the line at which the rank stands', () => {
    const [here] = view.node.querySelectorAll('[aria-current=step]');
    assert.equal(here?.textContent, '→  14 breakpoint()');
  });

  test('says a line with Enter, and a command with its button', () => {
    input().value = 'p x';
    press('Enter');
    getByRole(view.node, 'button', { name: 'Next' }).click();
    assert.deepEqual([said, input().value], [['p x', 'next'], '']);
  });

  test('says nothing, and loses no line, while a command runs', () => {
    view.update({ ...PAUSED, busy: true });
    input().value = 'p x';
    press('Enter');
    getByRole(view.node, 'button', { name: 'Next' }).click();
    assert.deepEqual([said, input().value], [[], 'p x']);
    assert.match(getAllByRole(view.node, 'status')[0]?.textContent ?? '', /… runs$/);
  });

  test('completes with Tab, behind the caret too, unless more was typed meanwhile', async () => {
    input().value = 'p lo + 1';
    input().setSelectionRange(4, 4);
    assert.equal(press('Tab'), false);
    matches(['loss']);
    await settled();
    assert.equal(input().value, 'p loss + 1');
    press('Tab');
    input().value = 'p loss + 10';
    matches(['lossy']);
    await settled();
    assert.equal(input().value, 'p loss + 10');
  });

  test('lets Tab leave an empty line, and any line after Escape', () => {
    assert.equal(press('Tab'), true);
    input().value = 'p x';
    press('Escape');
    assert.equal(press('Tab'), true);
    assert.equal(press('Tab', { shiftKey: true }), true);
  });

  test('adds what is new and leaves what was there, for those who hear it', () => {
    const first = { kind: 'said', text: '(Pdb) p x' };
    view.update({ ...PAUSED, entries: [first] });
    const log = getByRole(view.node, 'log');
    const before = log.firstChild;
    view.update({ ...PAUSED, entries: [first, { kind: 'answer', text: '1' }] });
    assert.equal(log.firstChild, before);
    assert.equal(log.children.length, 2);
    view.update({ ...PAUSED, entries: [{ kind: 'answer', text: '1' }] });
    assert.equal(log.textContent, '1');
  });

  test('takes no more when the rank has gone on, and keeps the focus', () => {
    view.focus();
    view.update({ ...PAUSED, over: true });
    assert.equal(queryByRole(view.node, 'textbox'), null);
    assert.equal(view.node.ownerDocument.activeElement, view.node);
  });
});

describe('a console that asks the kernel', () => {
  const standing = { console: 7, title: 'workers', prompt: '(Pdb) ', over: false, text: '', note: '', source: null };
  let asked: Request[];
  let answers: { resolve: (result: unknown) => void; reject: (why: Error) => void }[];
  let pane: DebugPane;

  beforeEach(() => {
    const document = newPage();
    asked = [];
    answers = [];
    pane = new DebugPane(what => {
      asked.push(what);
      return new Promise((resolve, reject) => answers.push({ resolve, reject }));
    });
    document.body.append(pane.node);
  });

  const open = async (): Promise<void> => {
    pane.open('u', 3);
    answers.at(-1)?.resolve(standing);
    await settled();
  };

  test('is opened for one rank, and lets go of it when it is closed', async () => {
    await open();
    assert.deepEqual(asked, [{ do: 'console', mesh: 'u', ranks: [3] }]);
    assert.ok(pane.isOpen);
    getByRole(pane.node, 'button', { name: 'Close console' }).click();
    assert.deepEqual(asked.at(-1), { do: 'let_go', console: 7 });
    assert.equal(queryByRole(pane.node, 'textbox'), null);
  });

  test('says why it is not opened', async () => {
    pane.open('u', 3);
    answers[0]?.reject(new Error('nothing runs there'));
    await settled();
    assert.equal(getByRole(pane.node, 'status').textContent, 'nothing runs there');
  });

  test('lets go of a rank whose console was closed before it was open', async () => {
    pane.open('u', 3);
    pane.close();
    answers[0]?.resolve(standing);
    await settled();
    assert.deepEqual(asked.at(-1), { do: 'let_go', console: 7 });
    assert.equal(pane.isOpen, false);
  });

  test('shows what was said, what came of it, and that the rank has gone on', async () => {
    await open();
    getByRole(pane.node, 'button', { name: 'Continue' }).click();
    assert.deepEqual(asked.at(-1), { do: 'say', console: 7, text: 'continue' });
    answers.at(-1)?.resolve({ ...standing, over: true, note: 'workers has gone on' });
    await settled();
    assert.equal(getByRole(pane.node, 'log').textContent, '(Pdb) continueworkers has gone on');
    pane.refresh();
    assert.equal(asked.length, 2);
  });

  test('asks how things stand only while no command will tell', async () => {
    await open();
    pane.refresh();
    assert.deepEqual(asked.at(-1), { do: 'standing', console: 7 });
    getByRole(pane.node, 'button', { name: 'Next' }).click();
    pane.refresh();
    assert.deepEqual(asked.at(-1), { do: 'say', console: 7, text: 'next' });
  });
});

describe('what waits at breakpoints', () => {
  const group: Group = {
    mesh: 'u',
    ranks: [2, 5],
    names: ['gpus=2', 'gpus=5'],
    name: 'workers[gpus=2,5]',
    where: 'Trainer.step, Cell In[2], line 14'
  };

  test('is a line a place, each with a choice of ranks and a way on', () => {
    const document = newPage();
    const asked: Request[] = [];
    const view = new BreakpointsView(what => {
      asked.push(what);
      return new Promise(() => undefined);
    });
    document.body.append(view.node);
    view.update([group]);
    assert.equal(getAllByRole(view.node, 'status')[0]?.textContent, '2 ranks wait at a breakpoint');
    const choice = getByRole<HTMLSelectElement>(view.node, 'combobox');
    choice.value = '5';
    getByRole(view.node, 'button', { name: 'Console of workers[gpus=2,5]' }).click();
    getByRole(view.node, 'button', { name: 'Continue workers[gpus=2,5]' }).click();
    assert.deepEqual(asked, [
      { do: 'console', mesh: 'u', ranks: [5] },
      { do: 'resume', mesh: 'u', ranks: [2, 5] }
    ]);
    view.update([group]);
    assert.equal(getByRole(view.node, 'combobox'), choice);
    view.update([]);
    assert.equal(getAllByRole(view.node, 'status')[0]?.textContent, 'No rank is paused here now.');
    assert.equal(queryByRole(view.node, 'listitem'), null);
  });
});
