"""Schedulers for Ray Tune that give trials other resources than they began with."""
