"""Records what the trials of a run used, and shows it: tables, advice, metrics and a page."""
