"""Hardware as data: what each target takes, and the limits of its arithmetic."""
