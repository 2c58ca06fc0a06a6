"""Range methods: from what was observed of a tensor to the range that is quantized."""
