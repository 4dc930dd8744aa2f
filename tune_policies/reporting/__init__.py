"""What a run of Tune used of its cluster, what stood idle, and why: counted while it runs."""
