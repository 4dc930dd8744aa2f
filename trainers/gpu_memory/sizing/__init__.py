"""How much GPU memory a training needs: estimated before anything runs, or measured by short trials."""
