"""Writing files that the file readers of `penstock.data` read."""

from penstock.engine.formats.tfrecord import TFRecordOptions, TFRecordWriter

__all__ = ["TFRecordOptions", "TFRecordWriter"]
