"""Strategy workers: how the processes of a strategy find each other, and their collectives."""
