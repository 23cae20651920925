"""The policy `inference`: servers of an inference system, which lends the idle ones."""
