"""Fault injection for tests.

Faults are real: signals are sent to processes, and messages are delayed. Programs that inject no
faults do not import this package.
"""
