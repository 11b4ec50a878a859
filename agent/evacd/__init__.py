"""The node daemon: notice → order → plan → flush → commit → report."""
