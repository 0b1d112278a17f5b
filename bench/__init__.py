"""Measurements, side by side in one run. Figures are for comparing, not for asserting."""
