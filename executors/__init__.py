"""The runners of nodes: the GPU services that carry out commands with torch, transformers and peft."""
