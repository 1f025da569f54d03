"""An emulated fabric: network namespaces, shaped links, the engine moving real packets."""
