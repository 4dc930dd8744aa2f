"""The only package that uses parts of Ray that are private or not in its documented API."""
