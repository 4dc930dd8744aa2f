"""Nodes with their devices, accelerator families, TPU slices and labels."""
