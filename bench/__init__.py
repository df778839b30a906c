"""Measurements: JSON on standard output, nothing asserted (the machines are noisy)."""
