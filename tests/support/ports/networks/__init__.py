"""Networks that are ported with ten faults or more each."""
