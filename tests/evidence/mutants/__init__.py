"""Tests the unit tests with mutants of the code."""
