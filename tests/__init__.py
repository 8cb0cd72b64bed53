"""Tests: a file for each file of src/penstock, and comparisons with TensorFlow's answers."""
