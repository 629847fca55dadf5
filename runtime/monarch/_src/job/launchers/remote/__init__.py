"""The program that launchers run on hosts of their jobs, and the shell lines that start it."""
