"""PURE: state machines, events in and actions out. No I/O, no clock, no threads.

`calls` is the caller's side of every call, `notices` and `waiting` what ends its waits, `host`
what a host agent knows of its procs, `ids` how meshes, actors and nodes are named.
"""
