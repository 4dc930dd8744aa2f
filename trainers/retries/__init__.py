"""Retries failed trials with other resources."""
