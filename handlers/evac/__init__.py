"""evac."""
