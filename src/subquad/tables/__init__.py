"""Papers as data: their tables, what was printed in each cell, and how that compares with what was measured."""
