"""Fault injection, for users' tests and ours.

What is injected is real: real signals to real processes, messages that really wait. Nothing here is
loaded by a program that does not ask for it.
"""
