"""PURE: leases of sessions, and which procs know the client."""
