"""Holds a worker to its fraction of GPU memory, framework by framework, and says what it used."""
