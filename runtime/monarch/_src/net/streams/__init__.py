"""Encrypted TCP connections of the data plane, beside the links of the control plane."""
