"""The command ``tune-policies``: a module for each group of commands, and their common options and errors."""
