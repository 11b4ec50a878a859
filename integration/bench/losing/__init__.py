"""Processes that are killed while they save, and what is left of it."""
