"""Sockets within one host, the threads that wait on them, and SIGINT."""
