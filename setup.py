"""The packages of src/, of configs/ and docs/results/, and the contract of tests/, which pyproject.toml cannot say."""

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

CONTRACT = {
    "subquad.contract": {"conftest"},
    "subquad.contract.attention": {"__init__", "cells", "conftest", "test_contract", "test_derivatives", "test_export"},
    "subquad.contract.backbones": {"test_encoders"},
}
"""The tests that `subquad check` runs, by package."""


class Build(build_py):
    """Builds all modules of a package, but of tests/ only those of the contract."""

    def find_package_modules(self, package, package_dir):
        """Tuples of package, module and file."""
        found = super().find_package_modules(package, package_dir)
        return [entry for entry in found if entry[1] in CONTRACT.get(package, {entry[1]})]


setup(
    packages=[*find_namespace_packages("src"), "subquad.configs", "subquad.store", *CONTRACT],
    cmdclass={"build_py": Build},
)
