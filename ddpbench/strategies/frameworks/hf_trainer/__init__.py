"""The `hf_trainer` strategy: the Trainer of Hugging Face transformers."""
