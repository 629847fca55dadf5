"""The part of the debugger that runs on a rank."""
