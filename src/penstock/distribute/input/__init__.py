"""Input: a dataset, shared out among workers and cut into portions for their replicas."""
