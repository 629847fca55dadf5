"""Metrics and spans of user programs (`get_meter`, `span`, `traced`) and of endpoints."""
