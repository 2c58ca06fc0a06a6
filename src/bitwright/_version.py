"""The version, where everything can read it without importing anything else."""

__version__ = "0.1.0"
