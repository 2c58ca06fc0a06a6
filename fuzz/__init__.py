"""Hostile and random inputs for every command: `make fuzz`, `python -m fuzz --help`."""
