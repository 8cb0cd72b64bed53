"""The same plan, computed by other processes: a dispatcher, workers, and clients that read.

Every element is identified by a stream and an ordinal. A client asks for it by these, and asking
twice is harmless; that is all that exactly-once delivery rests on.
"""
