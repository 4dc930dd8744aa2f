"""Creates the plan of a policy, the slot for each config, and the error if no trial fits."""
