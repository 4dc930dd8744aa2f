"""Asking an autoscaler for nodes, and hearing what becomes of it."""
