"""Efficient attention: any mechanism in any backbone on any task, measured against the papers."""
