"""What the elastic bench starts beside torchrun."""
