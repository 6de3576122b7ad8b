"""Everything that depends on Hydra: composing a run, checking its settings, its fingerprint."""
