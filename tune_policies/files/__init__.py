"""Reads, writes and locks files, and prints to terminals."""
