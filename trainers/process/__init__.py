"""Sets up the processes of trials, tasks and actors."""
