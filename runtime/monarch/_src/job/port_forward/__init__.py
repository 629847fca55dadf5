"""`PortForwarder`: TCP ports of some processes, reached through ports of others."""
