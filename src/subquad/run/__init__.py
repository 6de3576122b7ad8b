"""What the doors do: name a run, train it, evaluate it, report it."""
