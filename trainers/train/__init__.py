"""Builds Ray Train's trainers under a plan."""
