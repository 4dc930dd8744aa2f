"""Mutation testing: measures how many small mistakes in the code the unit tests detect."""
