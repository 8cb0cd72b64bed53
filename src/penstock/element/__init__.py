"""The element: what a value is, how it is described (specs) and how it travels (chunks)."""
