"""What Hydra finds of Subquad: plugins must live in a package of this name."""
