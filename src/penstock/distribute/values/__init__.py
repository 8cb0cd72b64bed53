"""Values: what stands on each replica, trees of it, and variables with a copy on each."""
