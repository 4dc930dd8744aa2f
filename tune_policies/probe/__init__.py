"""How a cluster is read: its state from the GCS, facts of its nodes by tasks, its configuration from files."""
