"""Workers: how the processes of a strategy find each other, and their collective operations."""
