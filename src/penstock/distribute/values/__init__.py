"""Values of replicas, trees of them, and variables with a copy on each replica."""
