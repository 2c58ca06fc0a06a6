"""The version, where everything can read it without importing anything else."""

__version__ = "0.1.0"
TOOL = f"bitwright {__version__}"
"""What plans name as the tool that made them."""
