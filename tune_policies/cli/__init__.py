"""The command ``tune-policies``: a module for each group of commands, and how all of them read, print and end."""
