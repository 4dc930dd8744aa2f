"""Measures the quality of this project: its plans, its reliability and its tests."""
