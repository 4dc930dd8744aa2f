"""Finds out how much GPU memory a model needs: estimates it, measures short trials, and measures the overhead."""
