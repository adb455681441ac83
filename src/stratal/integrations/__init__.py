"""Systems that own the machines and the data: jobs of ranks inside of theirs."""
