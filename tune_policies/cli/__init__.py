"""The command-line interface: the commands, the options that they share, and their error handling."""
