"""The basic types of the package: units, amounts, errors, and the base class of values."""
