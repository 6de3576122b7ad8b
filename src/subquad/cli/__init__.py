"""The commands, one module each: `subquad <name>` runs the `main` of `subquad.cli.<name>`."""
