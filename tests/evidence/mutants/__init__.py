"""Whether the unit tests see each small mistake in the code: mutants of a module, and the tests that kill them."""
