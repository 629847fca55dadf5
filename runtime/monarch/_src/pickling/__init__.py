"""User data <-> bytes: values, functions and classes, by reference or by value. No I/O."""
