"""Functions for `import penstock as tf`: the few that ported code needs around a pipeline.

NumPy in, NumPy out, with TensorFlow's dtypes (an int is an int32, a float a float32, a string is
bytes). No more than that: inside a pipeline users write NumPy, torch or jax. Arguments that only
steer TensorFlow (`name`, `jit_compile`, ...) are accepted and change nothing.
"""
