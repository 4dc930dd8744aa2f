"""Measures this project itself: its plans, its reliability and its tests."""
