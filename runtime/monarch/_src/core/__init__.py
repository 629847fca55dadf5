"""PURE: state machines, events in and actions out. No I/O, no clock, no threads.

`calls` is the caller's side of every call, `waiting` finds actors that wait for each other, `host`
what a host agent knows of its procs, `ids` how meshes, actors and nodes are named.
"""
