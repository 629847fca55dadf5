"""Processes: the host agent, its zygote, how a proc begins and how its end is told.

No user code runs in the agent or, but for the imports of `preload`, in the zygote. Actors are
started through an entry point given by name, so this layer knows none.
"""
