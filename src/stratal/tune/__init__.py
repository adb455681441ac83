"""Tuning: measurements decide where estimates do not; records of them decide in later compilations."""
