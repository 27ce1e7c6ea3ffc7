"""Synthetic problems with known constants, a NumPy simulator of SPECIAL, and studies of how the bounds scale."""
