"""The record of a benchmark run, and the file that stores it."""
