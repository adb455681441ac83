"""Files: safetensors, and models as a readable graph with its weights. Never pickle, never eval."""
