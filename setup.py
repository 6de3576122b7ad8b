"""The packages of src/, and configs/ and docs/results/ as two more, which pyproject.toml cannot say beside `find`."""

from setuptools import find_namespace_packages, setup

setup(packages=[*find_namespace_packages("src"), "subquad.configs", "subquad.store"])
