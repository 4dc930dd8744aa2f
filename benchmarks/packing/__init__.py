"""Throughput against trials per GPU."""
