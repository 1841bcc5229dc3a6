"""PyTorch's gradient graph: its nodes, edges, views and how it is freed."""
