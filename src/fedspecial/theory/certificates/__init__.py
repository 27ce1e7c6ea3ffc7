"""Certificates: the measured distance to the anchor compared with the bounds on it, for a round, a task and a run."""
