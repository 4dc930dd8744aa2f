"""What people look at: figures, an HTML page and Markdown."""
