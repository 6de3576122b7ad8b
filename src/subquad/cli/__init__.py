"""Commands: `subquad <name>` runs `main` of the module `subquad.cli.<name>`."""
