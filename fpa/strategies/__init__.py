"""Collection strategies by name: where to resample from, and how."""
