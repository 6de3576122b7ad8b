"""What other people's code uses: attentions and models by name, and their exchange in models of other libraries."""
