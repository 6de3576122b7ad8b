"""The packages: those of src/, and configs/ as subquad.configs, which pyproject.toml cannot say beside `find`."""

from setuptools import find_namespace_packages, setup

setup(packages=[*find_namespace_packages("src"), "subquad.configs"])
