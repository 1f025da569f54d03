"""A real subnet manager and real tools on a simulated fabric."""
