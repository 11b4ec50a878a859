"""evac where people already are: each file is a whole program, and a test."""
