"""The figures of the papers, drawn from this package's own runs and measurements: one kind of figure a file."""
