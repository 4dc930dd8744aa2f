"""The basic types of the package: units, amounts, errors, the wording of messages, and the base class of values."""
