/** A page to write tests of views with. */

import { JSDOM } from 'jsdom';

import type { Request } from '../../monarch_jupyter/widgets/js/protocol.js';

/** Make an empty page the one that views are made in; its document. */
export function newPage(): Document {
  const { window } = new JSDOM('<body></body>');
  const { document, Element, Event, HTMLElement, KeyboardEvent, MutationObserver, Node } = window;
  const requestAnimationFrame = (draw: () => void): void => void setImmediate(draw);
  Object.assign(globalThis, { document, Element, Event, HTMLElement, KeyboardEvent, MutationObserver, Node });
  Object.assign(globalThis, { requestAnimationFrame });
  window.HTMLCanvasElement.prototype.getContext = () => null; // jsdom has none
  return document;
}

/** What is asked for as a rank is shown, and not by whoever presses a button. */
export function isLook(what: Request): boolean {
  return ['actors', 'usage', 'timeline'].includes(what.do);
}

interface RenderProps {
  model: {
    get: (name: string) => unknown;
    send: (content: unknown) => void;
    on: (event: string, callback: (content: unknown) => void) => void;
    off: () => void;
  };
  el: HTMLElement;
}

/** A view of a widget as anywidget makes one, in a new page, and the kernel's side of it. */
export class WidgetPage {
  readonly said: { type: string }[] = [];
  readonly end: () => void;
  private readonly _heard = new Map<string, (content: unknown) => void>();

  constructor(widget: { render: (props: RenderProps) => () => void }, traits: Readonly<Record<string, unknown>>) {
    const model = {
      get: (name: string): unknown => traits[name],
      send: (content: unknown): void => void this.said.push(content as { type: string }),
      on: (event: string, callback: (content: unknown) => void): void => void this._heard.set(event, callback),
      off: (): void => undefined
    };
    this.end = widget.render({ model, el: newPage().body });
  }

  hear(message: object, event = 'msg:custom'): void {
    this._heard.get(event)?.(message);
  }
}

/** Ends when all has run that was due when it was called. */
export function settled(): Promise<void> {
  return new Promise(done => setImmediate(done));
}
