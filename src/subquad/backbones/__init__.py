"""Models around an attention, or without one: a file for each."""
