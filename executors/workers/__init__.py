"""Worker processes of a node, for runners that train on several GPUs or nodes: how they are started, how they
find each other, and what they do together.
"""
