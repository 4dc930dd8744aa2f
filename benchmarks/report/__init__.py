"""Tables, figures, and reports in HTML and Markdown."""
