"""Wraps the private and undocumented parts of Ray. No other package uses them."""
