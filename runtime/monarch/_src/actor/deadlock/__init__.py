"""Calls that wait for each other are found and reported."""
