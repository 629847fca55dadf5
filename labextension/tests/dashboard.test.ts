import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';

import { getAllByRole, getByLabelText, getByRole, getByText, queryByRole } from '@testing-library/dom';

import { Dashboard } from '../../monarch_jupyter/widgets/js/dashboard.js';
import { DashboardServer } from '../../monarch_jupyter/widgets/js/dashboard_server.js';
import type { Row } from '../../monarch_jupyter/widgets/js/protocol.js';
import { mesh, row } from './meshes.js';
import { newPage, settled } from './page.js';

interface Asked {
  url: string;
  body: unknown;
}

const SPAN = { first_us: 100_000_000, last_us: 106_040_000, samples: 13 };

function state(fields: object = {}): object {
  const now_us = 106_040_000;
  return { type: 'snapshot', seq: -1, meshes: [mesh('ab', { name: 'workers' })], missing: [], now_us, offered: ['lines'], span: null, ...fields };
}

/** A server that gives the answers of a test, by the path of a request. */
class Server {
  readonly asked: Asked[] = [];
  readonly answers: Record<string, object> = { state: state() };
  status = 200;

  readonly fetch = (url: string, init?: RequestInit): Promise<Response> => {
    const body: unknown = typeof init?.body === 'string' ? JSON.parse(init.body) : undefined;
    this.asked.push({ url, body });
    const answer = this.answers[url.split('?')[0] ?? ''];
    return Promise.resolve(new Response(JSON.stringify(answer), { status: this.status }));
  };

  refuse(status: number, message: string): void {
    this.status = status;
    for (const path of Object.keys(this.answers)) {
      this.answers[path] = { error: { code: 'x', message } };
    }
  }
}

describe('the dashboard', () => {
  let server: Server;
  let dashboard: Dashboard;
  let body: HTMLElement;

  beforeEach(() => {
    body = newPage().body;
    server = new Server();
    dashboard = new Dashboard(new DashboardServer(server.fetch));
    body.append(dashboard.node);
  });

  const shown = (): string => body.textContent;

  test('shows the meshes of live sessions, and no slider', async () => {
    await dashboard.poll();
    assert.match(shown(), /live: 1 mesh, 2 ranks/);
    getByRole(body, 'grid', { name: /workers/ });
    assert.equal(queryByRole(body, 'slider'), null);
    assert.deepEqual(server.asked[0], { url: 'state', body: undefined });
  });

  test('shows only buttons whose requests are answered', async () => {
    await dashboard.poll();
    assert.equal(queryByRole(body, 'button', { name: /Stop|Kill|Restart/ }), null);
    assert.equal(queryByRole(body, 'button', { name: 'Timeline' }), null);
  });

  test('says what is missing', async () => {
    server.answers.state = state({ missing: [{ table: 'procs', where: 'node-2', reason: 'no answer' }] });
    await dashboard.poll();
    assert.match(shown(), /Incomplete\. procs: node-2: no answer/);
  });

  test('keeps the last state when the server does not answer, and says so', async () => {
    await dashboard.poll();
    server.refuse(500, 'it has failed');
    await dashboard.poll();
    assert.match(getByRole(body, 'alert').textContent, /^Not live: it has failed\. This is the last known state/);
    getByRole(body, 'grid', { name: /workers/ });
  });

  test('tells a stranger which address to open', async () => {
    server.refuse(401, 'no token');
    await dashboard.poll();
    assert.match(getByRole(body, 'alert').textContent, /open the address that monarch dashboard printed/);
  });

  test('shows one view at a time, chosen by its tab or arrow keys', async () => {
    await dashboard.poll();
    const tab = getByRole(body, 'tab', { name: 'Explorer' });
    tab.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true }));
    assert.equal(getByRole(body, 'tab', { name: 'Explain' }).getAttribute('aria-selected'), 'true');
    assert.equal(queryByRole(body, 'tabpanel', { name: 'Explorer' }), null);
    getByRole(body, 'tabpanel', { name: 'Explain' });
  });

  test('shows rows of a query as text', async () => {
    await dashboard.poll();
    getByRole(body, 'tab', { name: 'SQL' }).click();
    server.answers.query = { columns: ['name', 'n'], rows: [{ name: '<img src=x>', n: 3 }, { name: null, n: [1] }], missing: [] };
    getByRole(body, 'button', { name: 'Run' }).click();
    await settled();
    const cells = [...getByRole(body, 'region', { name: 'Rows' }).querySelectorAll('td')];
    assert.deepEqual(cells.map(cell => cell.textContent), ['<img src=x>', '3', 'NULL', '[1]']);
    assert.match(shown(), /2 rows/);
    assert.equal(body.querySelector('img'), null);
  });

  describe('with paused ranks', () => {
    const paused = (rank: number, where: string): Row => row(rank, { state: 'paused', where });
    const rows = [paused(0, 'Trainer.step (train.py:7)'), row(1), paused(2, 'Trainer.step (train.py:7)'), paused(3, 'main (train.py:20)')];
    const stopped = mesh('ab', { name: 'workers', sizes: { gpus: 4 }, rows });

    test('counts them in the tab, and shows those at one place together', async () => {
      server.answers.state = state({ meshes: [stopped] });
      await dashboard.poll();
      getByRole(body, 'tab', { name: 'Debug (3)' }).click();
      const items = getAllByRole(getByRole(body, 'list', { name: 'Paused ranks' }), 'listitem');
      assert.deepEqual(items.map(item => item.textContent), [
        'workers gpus=0 and 1 more in Trainer.step (train.py:7) ',
        'workers gpus=3 in main (train.py:20) '
      ]);
      assert.equal(getByText(body, /This page only reads/).hidden, false);
      assert.equal(queryByRole(body, 'button', { name: /Continue|Console/ }), null);
    });

    test('continues them and opens consoles for an owner', async () => {
      server.answers.state = state({ meshes: [stopped], offered: ['console', 'say', 'resume'] });
      await dashboard.poll();
      getByRole(body, 'tab', { name: 'Debug (3)' }).click();
      assert.equal(getByText(body, /This page only reads/).hidden, true);
      server.answers.ask = { console: 4, title: 'workers[gpus=3] in main (train.py:20)', prompt: '(Pdb) ', over: false, text: '', note: '', source: null };
      getByRole(body, 'button', { name: 'Console of workers gpus=3' }).click();
      await settled();
      assert.deepEqual(server.asked.at(-1)?.body, { do: 'console', mesh: 'ab', ranks: [3] });
      getByRole(body, 'region', { name: 'Debugger: workers[gpus=3] in main (train.py:20)' });
      server.answers.ask = '2 threads go on' as unknown as object;
      getByRole(body, 'button', { name: 'Continue workers gpus=0 and 1 more' }).click();
      await settled();
      assert.deepEqual(server.asked.at(-1)?.body, { do: 'resume', mesh: 'ab', ranks: [0, 2] });
      assert.match(shown(), /2 threads go on/);
    });
  });

  test('shows the error of a query', async () => {
    await dashboard.poll();
    getByRole(body, 'tab', { name: 'SQL' }).click();
    server.answers.query = {};
    server.refuse(400, 'Parser Error: syntax error at or near "SELEC"');
    getByRole(body, 'button', { name: 'Run' }).click();
    await settled();
    assert.match(shown(), /Parser Error/);
  });

  test('reads the case file when its view is opened', async () => {
    await dashboard.poll();
    server.answers.explain = { text: 'VERDICT  all is well' };
    getByRole(body, 'tab', { name: 'Explain' }).click();
    await settled();
    assert.equal(getByLabelText(body, 'Case file').textContent, 'VERDICT  all is well');
  });
});

describe('the dashboard of a recording', () => {
  let server: Server;
  let dashboard: Dashboard;
  let slider: HTMLInputElement;

  beforeEach(async () => {
    const { body } = newPage();
    server = new Server();
    server.answers.state = state({ span: SPAN, offered: ['lines', 'timeline'] });
    dashboard = new Dashboard(new DashboardServer(server.fetch));
    body.append(dashboard.node);
    await dashboard.poll();
    slider = getByRole(body, 'slider');
  });

  const move = async (to: string): Promise<void> => {
    slider.value = to;
    slider.dispatchEvent(new Event('input'));
    await settled();
  };

  test('begins at the end, and the slider reaches it', () => {
    assert.equal(slider.value, '6.0');
    assert.ok(Number(slider.max) >= 6.04);
    assert.match(document.body.textContent, /recording: 1 mesh/);
  });

  test('asks for the time of the slider, in every view', async () => {
    await move('2.5');
    assert.equal(server.asked.at(-1)?.url, 'state?at=2.5');
    getByRole(document.body, 'tab', { name: 'Explain' }).click();
    assert.equal(server.asked.at(-1)?.url, 'explain?at=2.5');
  });

  test('shows the last sample at the end of the slider', async () => {
    await move('2.5');
    await move(slider.max);
    assert.equal(server.asked.at(-1)?.url, 'state');
  });

  test('asks for each time once, since a recording does not change', async () => {
    await dashboard.poll();
    assert.equal(server.asked.length, 1);
    await move('2.5');
    await dashboard.poll();
    await move('1');
    assert.deepEqual(server.asked.map(({ url }) => url), ['state', 'state?at=2.5', 'state?at=1']);
  });

  test('asks again for a time that could not be shown', async () => {
    const before = server.answers.state ?? {};
    server.refuse(500, 'busy');
    await move('2.5');
    server.status = 200;
    server.answers.state = before;
    await dashboard.poll();
    assert.equal(queryByRole(document.body, 'alert'), null);
  });

  test('reads rows and the case file again at another time', async () => {
    server.answers.query = { columns: ['n'], rows: [], missing: [] };
    server.answers.explain = { text: 'VERDICT' };
    getByRole(document.body, 'tab', { name: 'SQL' }).click();
    await move('3');
    assert.ok(!server.asked.some(({ url }) => url.startsWith('query')), 'nothing was run yet');
    getByRole(document.body, 'button', { name: 'Run' }).click();
    await move('2.5');
    getByRole(document.body, 'tab', { name: 'Explain' }).click();
    await move('1');
    const asked = server.asked.map(({ url }) => url).filter(url => !url.startsWith('state'));
    assert.deepEqual(asked, ['query?at=3', 'query?at=2.5', 'explain?at=2.5', 'explain?at=1']);
  });

  test('goes back to the time before one that could not be shown', async () => {
    await move('2.5');
    const before = server.answers.state ?? {};
    server.refuse(500, 'busy');
    await move('1');
    server.status = 200;
    server.answers.state = before;
    await move('2.5');
    assert.equal(queryByRole(document.body, 'alert'), null);
  });

  test('says which time cannot be shown', async () => {
    server.refuse(500, 'the file is gone');
    await move('1');
    assert.equal(getByRole(document.body, 'alert').textContent, 'This time cannot be shown: the file is gone');
  });
});
