"""Watches a run for requests that cannot be fulfilled."""
