"""Actuators: what is emitted, and what is done to a real kernel and taken back."""
