"""The vocabulary of all other modules: units, amounts and errors."""
