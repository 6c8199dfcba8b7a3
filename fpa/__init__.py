"""Forking Paths Analysis: collect rollouts along a language model's greedy answer, and read them back."""
