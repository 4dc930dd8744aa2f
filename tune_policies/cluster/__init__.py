"""What there is: nodes with their devices, accelerator families, TPU slices and labels."""
