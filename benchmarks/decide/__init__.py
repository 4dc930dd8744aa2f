"""Decides from measurements which device is faster or cheaper, and from which size on."""
