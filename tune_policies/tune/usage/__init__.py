"""Records the resources that the trials of a run use, and shows them as tables, advice, metrics and a page."""
