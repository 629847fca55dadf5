"""Connections to hosts that only a gateway can reach."""
