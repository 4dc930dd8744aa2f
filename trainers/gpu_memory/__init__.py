"""Holds a worker to its share of GPU memory, framework by framework, and says what it used."""
