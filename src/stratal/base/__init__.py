"""What every tier shares: dtypes, dims, types, errors, settings, trees, source lines, decisions."""
