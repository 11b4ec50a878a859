"""An API server for tests, and what is driven against it."""
