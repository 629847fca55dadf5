"""PURE: state machines, events in and actions out. No I/O, no clock, no threads.

`link` and `link_actions` are one end of a link between hosts, `flow_control` its credit for other
processes, `message_order` the order over two routes, `link_faults` faults for tests. `addresses`
parses addresses, `access` checks keys and roles.
"""
