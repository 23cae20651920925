"""Worker processes of a node, for runners that train on several GPUs or nodes: how they are started, heard
and ended, how they find each other, and what they do together.
"""
