"""Pages that a person reads without the README: self-contained HTML, no network."""
