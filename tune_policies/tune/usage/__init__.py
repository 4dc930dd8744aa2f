"""What the trials of a run used of their fraction of GPU memory: the record, its files, and what follows from them."""
