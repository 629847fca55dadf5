"""What `ibverbs` stands on: RDMA network cards, queue pairs, registered memory.

Lower first: `devices`, `traffic`, `words` and `expired` are rules without I/O; `sysfs` finds the
cards; `binding` is the one module that knows pyverbs; `card` and `channel` have a card and queue
pairs open; `grants` and `serving` are the owner's side. Nothing of it is imported before a transfer
could go over a card.
"""
