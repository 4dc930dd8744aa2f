"""How much GPU memory a trainable needs, by its config: what was measured, and what follows from it."""
