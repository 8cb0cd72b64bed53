"""Streams, one file per family of operators; `engine.lower` puts them together."""
