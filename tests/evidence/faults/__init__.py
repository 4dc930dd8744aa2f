"""What files and writers take: damaged files for every loader, and ends at any moment for every writer."""
