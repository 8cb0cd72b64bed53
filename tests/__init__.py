"""Tests: one file for each file of src/penstock, and the conformance to TensorFlow's answers."""
