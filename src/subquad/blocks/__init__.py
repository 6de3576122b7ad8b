"""Parts that models share: layers, embeddings, heads, initial values."""
