"""The plan of a policy, the slot of each config, and the error if no trial fits."""
