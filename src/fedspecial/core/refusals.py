"""Reasons of refused updates (`UpdateRefused.reason`) that other parts look for."""

NO_SAMPLES = "it holds no samples of this task"
"""No fault: the client has no data of the task."""
NOT_FINITE = "contains NaN or Inf"
"""How the reason ends where the training has diverged."""
