"""What this project says of itself, measured: what plans cost, how good they are, how often verdicts are right."""
