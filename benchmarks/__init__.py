"""Benchmarks: our figures against what people use today, measured in one run."""
