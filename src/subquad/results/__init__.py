"""Tables of papers as data, the runs and measurements behind their cells, statistics and verdicts."""
