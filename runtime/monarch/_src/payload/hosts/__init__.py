"""Large payloads between hosts, by the encrypted TCP connections of the data plane."""
