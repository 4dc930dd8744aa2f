"""Shows values: tables in terminals and notebooks, and the picture of a plan."""
