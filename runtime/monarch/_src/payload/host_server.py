"""Sends copies of payloads to receivers that cannot map a segment of this process.

Runs in: any process that sends large payloads, on the thread that receives.
"""

from __future__ import annotations

import threading

from monarch._src.net.node import Node
from monarch._src.payload.outgoing import OutgoingPayloads
from monarch._src.payload.sender import PayloadSender
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import AskPart, AskPayload, PayloadPart, PayloadSent


def send_copied(node: Node, lender: PayloadSender | None, peer: str, asked: AskPayload) -> None:
    """Send a receiver that cannot map its segment a copy, or the news that the payload is gone."""
    lent = asked.lent

    def work() -> None:
        parts = None if lender is None else lender.copied_for(lent, asked.word)
        sent = PayloadSent(lent.number, lent.key, asked.word)
        node.send(peer, sent, NO_PAYLOAD if parts is None else parts)

    # Copying may take longer than a message handler may.
    threading.Thread(target=work, name="monarch-segments", daemon=True).start()


def send_piece(node: Node, served: OutgoingPayloads, peer: str, asked: AskPart) -> None:
    """Send the gateway of another host a piece of a payload, without a copy."""
    piece = served.piece(asked.key, asked.word, asked.part, asked.at, asked.size)
    sent = PayloadPart(asked.number, asked.key, asked.word, asked.part, asked.at)
    node.send(peer, sent, NO_PAYLOAD if piece is None else Payload(b"", [piece]))
