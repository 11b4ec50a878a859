"""The main job, shown with real parts: `python -m integration.demo`."""
