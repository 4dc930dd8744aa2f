"""Plans: slots, the slot of each config, and the error if no trial fits."""
