import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';

import { getByRole, queryByRole } from '@testing-library/dom';

import { ActorsView } from '../../monarch_jupyter/widgets/js/actors.js';
import type { LiveActor, Request } from '../../monarch_jupyter/widgets/js/protocol.js';
import { newPage, settled } from './page.js';

function actor(name: string, fields: Partial<LiveActor> = {}): LiveActor {
  return {
    name,
    class_name: 'models.Trainer',
    running: [],
    queued: 0,
    attributes: [['rate', '0.1']],
    more: 0,
    ended: false,
    ...fields
  };
}

describe('the actors of a rank', () => {
  let asked: Request[];
  let answers: { done: (result: unknown) => void; refused: (why: Error) => void }[];
  let view: ActorsView;

  beforeEach(() => {
    const document = newPage();
    asked = [];
    answers = [];
    view = new ActorsView(what => {
      asked.push(what);
      return new Promise((done, refused) => answers.push({ done, refused }));
    });
    document.body.append(view.node);
    view.show('7', 3, true);
  });

  const answer = async (...actors: LiveActor[]): Promise<void> => {
    answers.at(-1)?.done({ actors });
    await settled();
  };
  const said = (): string => document.querySelector('summary')?.textContent ?? '';

  test('are asked for when a rank is shown, and again each second but never twice at once', async () => {
    assert.deepEqual(asked, [{ do: 'actors', mesh: '7', ranks: [3] }]);
    view.tick();
    view.show('7', 3, true);
    assert.equal(asked.length, 1);
    await answer(actor('trainers'));
    view.tick();
    assert.equal(asked.length, 2);
  });

  test('tell class, what runs, what is queued and each attribute', async () => {
    await answer(actor('trainers', { running: ['step', 'step', 'save'], queued: 2, more: 4 }));
    assert.equal(said(), 'trainersTrainerin step ×2, save, 2 calls queued');
    const group = getByRole(document.body, 'group', { name: 'Attributes of trainers' });
    assert.equal(group.textContent, 'rate0.1and 4 more');
  });

  test('change in place, and what was closed stays closed', async () => {
    await answer(actor('trainers'));
    const [details, text] = [document.querySelector('details'), document.querySelector('dd')];
    details?.removeAttribute('open');
    view.tick();
    await answer(actor('trainers', { attributes: [['rate', '0.2'], ['step', '1']] }));
    assert.equal(document.querySelector('details'), details);
    assert.equal(details?.open, false);
    assert.equal(document.querySelector('dd'), text);
    assert.equal(text?.textContent, '0.2');
  });

  test('of another rank are not shown under this one, however late they come', async () => {
    const late = answers[0];
    view.show('7', 4, true);
    await answer(actor('others'));
    late?.done({ actors: [actor('trainers')] });
    await settled();
    assert.ok(said().startsWith('others'));
  });

  test('stay as they were last seen when the rank has ended, and nothing is asked any more', async () => {
    await answer(actor('trainers'));
    view.show('7', 3, false);
    view.tick();
    assert.equal(asked.length, 1);
    assert.ok(view.node.textContent.includes('This is the last known state.'));
  });

  test('say why they are not there, and are asked for again', async () => {
    answers[0]?.refused(new Error("gpus=3 can't be looked into"));
    await settled();
    assert.ok(view.node.textContent.includes("gpus=3 can't be looked into"));
    assert.equal(queryByRole(document.body, 'group'), null);
    view.tick();
    await answer(actor('trainers'));
    assert.ok(!view.node.textContent.includes("can't"));
  });
});
