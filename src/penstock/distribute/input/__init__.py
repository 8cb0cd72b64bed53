"""Input: a dataset is divided among workers and cut into portions for their replicas."""
