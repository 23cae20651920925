"""The tuner: runs fine-tuning tasks and switches between them in one runtime (Ymir, section 6)."""
