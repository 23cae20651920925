"""The policy `inference`: servers of an inference system, which lends those that it leaves idle."""
