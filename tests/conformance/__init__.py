"""The conformance suite, over every collector."""
