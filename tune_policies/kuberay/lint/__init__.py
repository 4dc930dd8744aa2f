"""What is wrong with the file of a cluster: what no schema says, and what costs a GPU user days."""
