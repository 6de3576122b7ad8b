"""The configurations, installed as the package subquad.configs: pkg://subquad.configs in a search path of Hydra."""
