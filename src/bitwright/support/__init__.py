"""What every room may use: arguments, settings, files, temporary folders, progress, processes."""
