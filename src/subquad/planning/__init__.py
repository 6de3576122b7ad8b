"""What a table costs before it is run: steps, seconds, memory, disk and downloads."""
