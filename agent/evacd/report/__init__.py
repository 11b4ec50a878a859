"""The report: what happened, written down while it happens, for people and for systemd."""
