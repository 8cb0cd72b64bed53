"""Workers: how the processes of a strategy find each other, and what they do together."""
