"""Whether the workers of a Train run can ever start."""
