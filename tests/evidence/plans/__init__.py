"""What plans cost, and how good they are."""
