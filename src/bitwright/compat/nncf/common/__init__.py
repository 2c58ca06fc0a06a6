"""`nncf.common`."""
