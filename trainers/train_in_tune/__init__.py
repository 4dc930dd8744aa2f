"""Train runs as trials of Tune."""
