"""Subquad's plugins for Hydra, which searches the package `hydra_plugins` for them."""
