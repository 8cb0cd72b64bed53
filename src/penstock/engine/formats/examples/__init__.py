"""Serialized `tf.train.Example`s to arrays and back, without TensorFlow.

A batch is read by NumPy, all examples in step; `protobuf_lists` replaces two of its loops where
protobuf is installed. `reading` reads one example in plain Python, by the
rules of TensorFlow's parser: it reads single examples, and the few of a batch that are encoded in
an unusual way.
"""
