"""What shows and measures evac as a whole; never installed."""
