"""Which of two arms is faster, and how sure that is."""
