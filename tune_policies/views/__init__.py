"""How values look: tables in a terminal and in a notebook, and the picture of a plan."""
