"""Engines by name. Each is imported only when asked for, so that its heavy dependencies stay optional."""
