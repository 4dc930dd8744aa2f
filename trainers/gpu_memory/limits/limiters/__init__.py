"""Holds one framework each to its share: a module for every framework."""
