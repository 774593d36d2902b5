"""The Hugging Face config and tokenizer that vLLM reads, built from the metadata of a file."""
