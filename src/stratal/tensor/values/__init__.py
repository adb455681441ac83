"""What a tensor holds: handles, nodes and their values, traces, modes, views."""
