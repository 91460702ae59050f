"""Everything that people and programs read about nodes, pods and GPUs: values in, documents and texts out."""
