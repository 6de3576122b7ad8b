"""Measurements of models: time, memory, operations, energy, and on what machine."""
