"""Compares rules that decide how much each trial of a sweep reserves, on a simulator of Tune and of devices."""
