"""Valid cluster files, and mistakes that are inserted into them."""
