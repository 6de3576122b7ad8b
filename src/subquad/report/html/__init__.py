"""The report as HTML pages."""
