"""The answer of a policy: slots, what each trial gets by its config, and the error where none fits."""
