"""The one engine that says what fits, where, what is left, and what could be added: pure, in ticks."""
