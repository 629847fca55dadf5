"""The parts of `ibverbs`: RDMA network cards, queue pairs, registered memory.

Lower layers first: `device_choice`, `scheduler`, `protocol` and `expired_keys` are rules without
I/O; `sysfs` finds the cards; only `pyverbs` imports the library of that name; `card` and `channel`
have a card and queue pairs open; `grants` and `server` are the owner's side. None of these modules
is imported before a transfer could use a card.
"""
