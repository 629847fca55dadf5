"""The caller's side of an endpoint."""
