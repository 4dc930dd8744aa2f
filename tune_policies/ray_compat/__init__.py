"""The border with Ray: all of it that is private, or not in its documented API."""
