"""What all packages may use: arguments, settings, files, temporary folders, progress, processes."""
