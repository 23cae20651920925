"""Pipeline-parallel LoRA fine-tuning over torch.distributed, and the pipeline switch (Ymir, section 6.2)."""
