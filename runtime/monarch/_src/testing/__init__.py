"""For tests, the users' and ours: faults on purpose, and fakes of what a machine cannot have.

What is injected is real: real signals to real processes, messages that really wait. Nothing here is
loaded by a program that does not ask for it.
"""
