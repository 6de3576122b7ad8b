"""Efficient attention: any mechanism in any backbone on any task, measured against the papers."""

import subquad.utils.torchvision_shim  # noqa: F401
