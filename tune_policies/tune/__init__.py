"""Schedulers for Ray Tune that change the resources of trials during a run."""
