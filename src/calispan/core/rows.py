"""Rows: one chunk of scored rows, and the per-row numbers that metrics share."""
