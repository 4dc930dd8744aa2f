"""The command-line interface: a module for each group of commands, and their common options and errors."""
