"""The one way in and out for files: a bounded reader, a writer that writes all or nothing, a lock beside a file, and a terminal's text."""
