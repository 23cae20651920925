"""What runs on the nodes: the GPU services that carry out commands with torch, transformers and peft."""
