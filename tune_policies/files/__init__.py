"""Reads, writes and locks all files, and prints to terminals."""
