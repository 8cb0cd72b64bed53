"""Serialized `tf.train.Example`s to arrays and back, without TensorFlow and without protobuf.

A batch is read by NumPy, all examples in step. `reading` reads one example in plain Python, by the
rules of TensorFlow's parser: it reads single examples, and the few of a batch that are encoded in
an unusual way.
"""
