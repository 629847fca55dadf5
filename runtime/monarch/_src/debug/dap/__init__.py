"""Debuggers that speak the Debug Adapter Protocol."""
