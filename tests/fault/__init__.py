"""What dies with what: real processes, ended in every way."""
