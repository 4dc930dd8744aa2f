"""Runs of Ray Train's trainers under a plan."""
