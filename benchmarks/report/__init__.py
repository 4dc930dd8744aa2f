"""Tables for the terminal, figures, and HTML reports."""
