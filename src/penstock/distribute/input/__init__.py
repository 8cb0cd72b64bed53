"""Input: a dataset is divided among strategy workers and cut into portions for their replicas."""
