"""Actuators: what carries a routing choice out. Each is a module of its own, imported by name."""
