"""The one way in and out for files and terminals: a bounded reader, an all-or-nothing writer, a lock beside a file."""
