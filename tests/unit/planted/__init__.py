"""Sound files of clusters, and mistakes that are planted in them."""
