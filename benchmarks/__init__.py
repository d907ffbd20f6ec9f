"""Measurements: each script prints its table and appends rows to benchmarks/results/."""
