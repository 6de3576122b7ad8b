"""What the papers state as theorems and identities, measured: one file a topic, each with a function `check`."""
