"""Wraps the private and undocumented parts of Ray. Other packages use these parts only through this package."""
